"""Runs with clipped and noisy updates: what is disclosed, its cost, and what is rejected."""

import sys
from collections import Counter
from dataclasses import replace
from itertools import chain
from math import nan

import numpy as np
import pytest
import torch
from homes import clients_of
from scipy.stats import beta
from small_dialogue import conversations

from homespun.core import seeds
from homespun.core.errors import InputError, SettingsError
from homespun.core.messages import Broadcast, Rows, Update, state_to_bytes
from homespun.core.settings import parse
from homespun.core.transforms import Transforms
from homespun.data import load_federation
from homespun.engines.cohort import CohortTrainer
from homespun.engines.loop import LoopTrainer
from homespun.methods.furl import SMALL
from homespun.privacy.accounting import Release, compute_epsilon
from homespun.privacy.dp import DpMechanism
from homespun.privacy.ledger import BudgetError, Ledger, ledger_path
from homespun.privacy.mechanism import Clip, clipped, clipped_metrics, clipped_sum, norms, released_centrally
from homespun.privacy.noise import secure_normal, seeded_normal
from homespun.privacy.settings import Privacy, plan_privacy
from homespun.runs.open_run import open_run
from homespun.runs.settings import RunSettings
from homespun.runs.training import summarize_privacy
from homespun.system.method_loading import available_methods, method_module

PRIVATE = {"noise_multiplier": 1.5, "clip": 0.05, "insecure": True, "delta": 0.01}


def opened(tmp_path, *, name="run", privacy=None, method="furl", method_settings=None, **settings):
    given = {"ledger": str(tmp_path / "ledger.jsonl"), **PRIVATE, **(privacy or {})}
    given = {key: value for key, value in given.items() if value is not None}
    return open_run(
        tmp_path / name,
        method=method,
        federation=load_federation("dialects", settings={"users": 20, "examples": 10}),
        settings=RunSettings(
            **{"rounds": 3, "cohort": 8, "sampler": "poisson", "workers": 0, "privacy": given, **settings}
        ),
        method_settings={**SMALL, **(method_settings or {})},
    )


def spent(tmp_path):
    return Ledger(tmp_path / "ledger.jsonl", "dialects").spent()


def test_a_round_by_hand(tmp_path):
    """Clip each client's delta, sum, add noise, and divide by the expected cohort size."""
    with opened(tmp_path) as run:
        start, clip = run.state.broadcast(), Clip({"*": 0.05})
        drawn = np.flatnonzero(seeds.numpy_generator(0, "cohort", 0).random(20) < 8 / 20)
        total = {name: torch.zeros_like(value) for name, value in start.federated.items()}
        lengths = []
        for client in clients_of(run, drawn.tolist()):
            sent = LoopTrainer(run.built, 0).train(start, [client]).update
            plain = Update(**{**vars(sent), "federated": {n: v / sent.weight for n, v in sent.federated.items()}})
            lengths.append(norms(plain, clip)["*"])
            short = clipped(plain, clip)
            total = {name: value + short.federated[name] for name, value in total.items()}
        record = run.step()
        normal = seeded_normal(0, "central", 0)
        for name, value in sorted(start.federated.items()):
            noise = torch.from_numpy(1.5 * 0.05 * normal(value.numel())).reshape(value.shape).float()
            torch.testing.assert_close(run.state.federated[name], value + (total[name] + noise) / 8, rtol=0, atol=1e-6)
    assert max(lengths) > 0.05  # at least one update was clipped
    assert (record.clients, record.examples, record.rejected) == (8, 0, 0) and record.loss != record.loss
    assert spent(tmp_path) == Counter({Release(0.4, 1.5): 1})


@pytest.mark.parametrize("users", ["private", "table"])
@pytest.mark.parametrize("local_noise", [None, 0.7])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.system)])
def test_all_engines_transform_alike(tmp_path, users, local_noise, workers):
    noise = DpMechanism(Clip({"*": 0.05}), local_noise or 0.0, local=local_noise is not None, insecure_seed=3)
    chain = Transforms((noise,))
    with opened(tmp_path, method_settings={"users": users}) as run:
        start, clients = run.state.broadcast(), clients_of(run, range(9))
        slow = LoopTrainer(run.built, 0, chain).train(start, clients).update
        fast = CohortTrainer(run.built, 0, workers, chain).train(start, clients).update
    assert slow.weight == fast.weight == 9.0 and slow.metrics == fast.metrics == {"loss": 0.0, "examples": 0.0}
    for name, value in slow.federated.items():
        torch.testing.assert_close(value, fast.federated[name], rtol=0, atol=1e-6)
    for name, rows in slow.keyed.items():
        assert torch.equal(rows.index, fast.keyed[name].index)
        assert len(rows.index) == (9 if local_noise is None else len(start.keyed[name]))  # noise on all rows
        torch.testing.assert_close(rows.values, fast.keyed[name].values, rtol=0, atol=1e-6)


def test_the_cost_of_rounds_adds_up_over_a_resume(tmp_path):
    with opened(tmp_path, rounds=2) as run:
        list(run.rounds())
    with opened(tmp_path, rounds=5) as run:
        assert run.state.round == 2
        list(run.rounds())
    assert spent(tmp_path) == Counter({Release(0.4, 1.5): 5})


def test_a_round_is_debited_before_the_model_changes(tmp_path, monkeypatch):
    with opened(tmp_path) as run:
        run.commit()
        before = state_to_bytes(run.state)

        def killed(*_):
            assert spent(tmp_path) == Counter({Release(0.4, 1.5): 1})
            raise KeyboardInterrupt

        object.__setattr__(run.built.method, "server", killed)
        with pytest.raises(KeyboardInterrupt):
            run.step()
    with opened(tmp_path) as run:
        assert state_to_bytes(run.state) == before
        run.step()
    assert spent(tmp_path) == Counter({Release(0.4, 1.5): 2})  # one was debited but never released


def test_a_run_stops_before_the_round_that_would_exceed_the_budget(tmp_path):
    budget = compute_epsilon({Release(0.4, 1.5): 2}, delta=0.01) + 1e-6
    with opened(tmp_path, privacy={"budget": budget}, rounds=5) as run:
        with pytest.raises(BudgetError, match="The model is unchanged"):
            list(run.rounds())
        assert run.state.round == 2
        kept = state_to_bytes(run.state)
    with opened(tmp_path, rounds=5) as run:
        assert state_to_bytes(run.state) == kept
    with (
        opened(tmp_path, name="other", privacy={"budget": budget}) as run,
        pytest.raises(BudgetError, match="dialects: its privacy budget is spent"),
    ):
        run.step()
    assert sum(spent(tmp_path).values()) == 2


def test_an_empty_cohort_releases_noise_and_costs_a_round(tmp_path):
    with opened(tmp_path, cohort=1, seed=4) as run:
        empty = next(round for round in range(50) if not run.schedule.cohorts.of(round))
        run.state = type(run.state)(**{**vars(run.state), "round": empty})
        before = run.state.federated
        record = run.step()
        assert record.clients == 1  # the expected number
        assert all((run.state.federated[name] != value).any() for name, value in before.items())
    assert sum(spent(tmp_path).values()) == 1


def test_an_epsilon_is_turned_into_noise_and_its_rounds_cost_no_more(tmp_path):
    with opened(tmp_path, privacy={"noise_multiplier": None, "epsilon": 4.0}) as run:
        list(run.rounds())
        found = compute_epsilon(run.dp.account.ledger.spent(), delta=0.01)
    assert 3.8 < found <= 4.0


def test_with_local_noise_a_pass_over_the_users_costs_one_round(tmp_path):
    """20 users, 8 per round: each user uploads once in three rounds."""
    local = {"noise": "local", "amplification": False}
    with opened(tmp_path, privacy=local, sampler="shuffled", rounds=7) as run:
        list(run.rounds())
    # noise of 1.5 clip norms, and two updates may be two clip norms apart
    assert spent(tmp_path) == Counter({Release(1.0, 0.75): 3})


def test_local_noise_for_an_epsilon_is_twice_that_of_a_sum_over_all_users():
    about = {"users": 20, "cohort": 20, "sampler": "shuffled", "rounds": 1}
    central, local = (
        plan_privacy(Privacy(noise=noise, epsilon=4.0, delta=0.01, amplification=False), **about)
        for noise in ("central", "local")
    )
    assert local.release == central.release
    assert local.noise_multiplier == 2 * central.noise_multiplier == 2 * central.release.noise_multiplier


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sampler": "shuffled"}, "amplification holds for sampler = 'poisson', not for 'shuffled'"),
        ({"sampler": "uniform"}, "not for 'uniform'"),
        ({"privacy": {"delta": 0.06}}, "less than one over the number of users, 1/20"),
        ({"privacy": {"clip": {"user.*": 1.0}}}, "no pattern matches"),
        ({"privacy": {"clip": {"haed.*": 0.5, "*": 1.0}}}, "clip patterns 'haed.*' match no shared parameter"),
        ({"privacy": {"clip": {"*": 1.0, "lstm.*": 0.5}}}, "clip patterns 'lstm.*' .* the first match counts"),
    ],
)
def test_settings_without_a_valid_guarantee_are_rejected(tmp_path, wrong, message):
    with pytest.raises(SettingsError, match=message):
        opened(tmp_path, **wrong)
    assert not (tmp_path / "run").exists()


WRONG = [
    {"clip": 0}, {"clip": -1.0}, {"noise_multiplier": 0}, {"noise_multiplier": nan}, {"epsilon": 0}, {"delta": 0},
    {"delta": 1},    {"epsilon": 1.0, "noise_multiplier": 1.0}, {}, {"noise_multiplier": 1.0, "clp": 1},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_privacy_settings_are_rejected(wrong):
    with pytest.raises(ValueError, match="privacy"):
        RunSettings(rounds=1, privacy=wrong)


def test_secret_cohorts_do_not_depend_on_the_seed(tmp_path):
    with opened(tmp_path, privacy={"insecure": False}) as run:
        cohorts = [tuple(run.schedule.cohorts.of(0)) for _ in range(12)]
    assert len(set(cohorts)) > 6 and 4 < np.mean([len(cohort) for cohort in cohorts]) < 12


def test_local_noise_does_not_come_from_the_seed_unless_insecure(tmp_path):
    """Noise from a known seed could be subtracted."""

    def sent(name, **privacy):
        local = {"noise": "local", "amplification": False, **privacy}
        with opened(tmp_path, name=name, privacy=local, sampler="shuffled") as run:
            update = run.trainer.train(run.state.broadcast(), clients_of(run, [0])).update
        return torch.cat([tensor.flatten() for _, tensor in sorted(update.federated.items())])

    once, again = sent("once", insecure=False), sent("again", insecure=False)
    # the same user and seed: the difference is noise, twice 1.5 clip norms of 0.05
    assert (once - again).std() == pytest.approx(2**0.5 * 1.5 * 0.05, rel=0.1)
    assert torch.equal(sent("seeded", insecure=True), sent("seeded too", insecure=True))


def test_local_noise_has_no_amplification_because_uploads_are_visible():
    about = {"users": 100, "cohort": 10, "sampler": "poisson", "rounds": 5}
    for amplification in (True, False):
        plan = plan_privacy(Privacy(noise="local", noise_multiplier=4.0, amplification=amplification), **about)
        assert plan.release == Release(1.0, 2.0)


@pytest.mark.parametrize("amount", [{"noise_multiplier": 2.0}, {"epsilon": 4.0, "noise_multiplier": None}])
def test_without_the_accounting_library_no_run_starts(tmp_path, monkeypatch, amount):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(InputError, match=r"optional dependency. Install it with `pip install homespun\[privacy\]`"):
        opened(tmp_path, privacy=amount)
    assert not (tmp_path / "run").exists() and not (tmp_path / "ledger.jsonl").exists()


def test_a_private_run_can_be_read_without_the_accounting_library(tmp_path, monkeypatch):
    with opened(tmp_path) as run:
        run.step()
        run.commit()
        settings = run.settings
    federation = load_federation("dialects", settings={"users": 20, "examples": 10})
    kept = {"method": "furl", "federation": federation, "settings": settings, "method_settings": SMALL}
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with open_run(tmp_path / "run", **kept, read_only=True) as run:
        assert run.state.round == 1


@pytest.mark.parametrize("sampler", ["uniform", "shuffled"])
def test_cohorts_of_a_fixed_size_are_secret_too(tmp_path, sampler):
    """The cohort of a round does not depend on the seed."""
    fixed = {"insecure": False, "amplification": False}
    firsts = []
    for number in range(6):
        with opened(tmp_path, name=f"run {number}", privacy=fixed, sampler=sampler) as run:
            turn = [run.schedule.cohorts.of(round) for round in range(3)]
        assert [len(cohort) for cohort in turn] == ([8, 8, 8] if sampler == "uniform" else [8, 8, 4])
        assert all(cohort == sorted(set(cohort)) for cohort in turn)
        if sampler == "shuffled":
            assert sorted(chain(*turn)) == list(range(20))
        firsts.append(tuple(turn[0]))
    assert len(set(firsts)) > 3
    with opened(tmp_path, name="own noise", privacy={**fixed, "noise": "local"}, sampler=sampler) as run:
        seen = run.schedule.cohorts.of(0)  # not secret, so that a pass can resume after a kill
        assert seen == type(run.schedule.cohorts)(20, 8, sampler, 0).of(0)


def test_a_name_with_a_slash_has_its_own_ledger(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    paths = [ledger_path(name, place=None, named=None) for name in ("org/votes", "org/letters", "org")]
    assert [path.name for path in paths] == [
        "org%2Fvotes.privacy.jsonl", "org%2Fletters.privacy.jsonl", "org.privacy.jsonl"
    ]  # fmt: skip
    named = replace(load_federation("dialects", settings={"users": 20, "examples": 10}), name="org/votes")
    privacy = {**PRIVATE, "noise_multiplier": 1.0}
    settings = RunSettings(rounds=1, cohort=8, sampler="poisson", workers=0, privacy=privacy)
    with open_run(tmp_path / "run", method="furl", federation=named, settings=settings, method_settings=SMALL) as run:
        run.step()
    assert Ledger(paths[0], "org/votes").spent().total() == 1


@pytest.mark.parametrize("noise", [{"noise_multiplier": 0.05}, {"noise_multiplier": 0.15, "noise": "local"}])
def test_too_little_noise_is_rejected(tmp_path, noise):
    """The accountant would take hours."""
    with pytest.raises(SettingsError, match=r"expected at least 0\.1"):
        opened(tmp_path, privacy=noise)


def test_the_server_knows_the_standard_deviation_of_the_noise(tmp_path):
    for noise, expected in (("central", 1.5 * 0.05), ("local", 1.5 * 0.05 * 3)):
        with opened(tmp_path, name=noise, privacy={"noise": noise}, method_settings={"users": "table"}) as run:
            start = run.state.broadcast()
            total = LoopTrainer(run.built, 0).train(start, clients_of(run, range(9))).update
            noise = run.dp.on_server(total, start).noise
        assert noise == {name: pytest.approx(expected) for name in [*start.federated, *start.keyed]}


def test_statistics_add_a_twentieth_of_noise_to_parameters_and_no_epsilon(tmp_path):
    """1.5 times the root of 10/9 in the place of 1.5, and not times the root of two."""
    costs = {}
    for clip in (None, 4.0):
        with opened(tmp_path, name=f"statistics {clip}", privacy={"metrics_clip": clip}) as run:
            list(run.rounds())
            costs[clip] = summarize_privacy(run)
    assert costs[None]["epsilon"] == costs[4.0]["epsilon"]
    assert costs[None]["noise_norms"]["parameters"] == 1.5
    assert costs[4.0]["noise_norms"] == pytest.approx({"parameters": 1.581139, "statistics": 4.743416})


# An attack: a user with the worst possible update, and an observer who knows everything except whether they took part


def release(normal, *, canary, noise_multiplier):
    broadcast = Broadcast(0, {"w": torch.zeros(4)}, {})
    others = Update(0, {"w": torch.tensor([0.3, -0.2, 0.1, 0.4])}, {}, {}, weight=1.0, clients=1)
    total = others
    if canary:
        own = Update(0, {"w": torch.tensor([100.0, 0.0, 0.0, 0.0])}, {}, {}, weight=1.0, clients=1)
        total = others + clipped(own, Clip({"*": 1.0}))
    found = released_centrally(
        total, broadcast, Clip({"*": 1.0}), noise_multiplier=noise_multiplier, expected=1.0, normal=normal
    )
    return float(found.federated["w"][0]) - 0.3


def proven(without, within, thresholds, *, delta, tests):
    """The largest epsilon that an observer proves with 95 % confidence (Clopper and Pearson), over all of the tests."""
    trials, found = len(within), 0.0
    for threshold in thresholds:
        hits, alarms = int((within >= threshold).sum()), int((without >= threshold).sum())
        low = beta.ppf(0.025 / tests, hits, trials - hits + 1) if hits else 0.0
        high = beta.ppf(1 - 0.025 / tests, alarms + 1, trials - alarms)
        if low > delta:
            found = max(found, float(np.log((low - delta) / high)))
    return found


def empirical_epsilon(noise_multiplier, *, trials=4000, delta=1e-5):
    without, within = (
        np.array([release(secure_normal, canary=canary, noise_multiplier=noise_multiplier) for _ in range(trials)])
        for canary in (False, True)
    )
    return proven(without, within, np.linspace(0, 3, 13), delta=delta, tests=13)


def test_an_attack_stays_below_the_claimed_epsilon_and_without_noise_exceeds_it():
    claimed = compute_epsilon({Release(1.0, 1.0): 1}, delta=1e-5)
    found = empirical_epsilon(1.0)
    assert 0.5 < found <= claimed  # the attack is a real one
    assert empirical_epsilon(1e-6) > claimed  # and would have noticed that noise is missing


@pytest.mark.parametrize("noise_multiplier", [2.0, 0.1])
def test_the_attack_on_whole_rounds(tmp_path, monkeypatch, noise_multiplier):
    """The same on each parameter that a round of a run gives away: none is left without noise on the way. Where it is
    too little, the attack finds more than noise of 2 claims."""
    privacy = {"noise_multiplier": noise_multiplier, "clip": 1.0, "insecure": False, "amplification": False}
    settings = {"cohort": "all", "sampler": "uniform", "method_settings": {"users": "table"}}
    with opened(tmp_path, privacy=privacy, **settings) as run:
        start, broadcast = run.state, run.state.broadcast()
        monkeypatch.setattr(run.dp.account.ledger, "debit", lambda *_, **__: None)  # a thousand waits for the disk
        no_clients = run.trainer.train(broadcast, [])
        loud = {name: torch.full_like(value, 100.0) for name, value in broadcast.federated.items()}
        rows = {
            name: Rows(torch.arange(len(table)), torch.full_like(table, 100.0), torch.ones(len(table)))
            for name, table in broadcast.keyed.items()
        }
        canary = Update(0, loud, rows, no_clients.update.metrics, weight=1.0, clients=1)
        canary = run.dp.on_client(canary, broadcast, "canary")

        def seen(update):
            """How far a round with this update moves each parameter, in the canary's direction."""
            monkeypatch.setattr(run.trainer, "train", lambda *_, **__: replace(no_clients, update=update))
            run.state = start
            run.step()
            after = {**run.state.federated, **run.state.keyed}
            return [float((after[name] - value).sum()) for name, value in {**start.federated, **start.keyed}.items()]

        without, within = (np.array([seen(update) for _ in range(400)]).T for update in (no_clients.update, canary))
    claimed = compute_epsilon({Release(1.0, 2.0): 1}, delta=0.01)
    found = max(
        proven(before, after, np.quantile(after, np.linspace(0.05, 0.95, 7)), delta=0.01, tests=7 * len(within))
        for before, after in zip(without, within, strict=True)
    )
    assert found <= claimed if noise_multiplier == 2.0 else found > claimed


def test_all_rows_of_a_table_are_disclosed(tmp_path):
    with opened(tmp_path, method_settings={"users": "table"}) as run:
        before = run.state.keyed["user.table"]
        run.step()
        moved = (run.state.keyed["user.table"] != before).all(dim=1)
    assert bool(moved.all())


# ---- when a release is debited


def interrupted(monkeypatch, run, *, after):
    """Ctrl-C after this many cohorts have uploaded."""
    train, sent = run.trainer.train, []

    def once(*arguments, **options):
        outcome = train(*arguments, **options)
        sent.append(outcome)
        if len(sent) == after:
            raise KeyboardInterrupt
        return outcome

    monkeypatch.setattr(run.trainer, "train", once)
    with pytest.raises(KeyboardInterrupt):
        list(run.rounds())


def test_local_noise_is_debited_before_any_update_leaves_a_client(tmp_path, monkeypatch):
    with opened(tmp_path, privacy={"noise": "local"}) as run:
        interrupted(monkeypatch, run, after=1)
        assert run.state.round == 0 and spent(tmp_path).total() == 1
    with opened(tmp_path, name="spent", privacy={"noise": "local", "budget": 1e-3}) as run:
        monkeypatch.setattr(run.trainer, "train", lambda *_, **__: pytest.fail("an update left the client"))
        with pytest.raises(BudgetError):
            run.step()


def test_a_resumed_pass_is_debited_again(tmp_path, monkeypatch):
    """Each client uploads once in three rounds: one release. But those of round 2 may have uploaded before the kill."""
    local = {"noise": "local", "noise_multiplier": 4.0}
    with opened(tmp_path, privacy=local, sampler="shuffled", cohort=7) as run:
        interrupted(monkeypatch, run, after=2)
    monkeypatch.undo()
    with opened(tmp_path, privacy=local, sampler="shuffled", cohort=7) as run:
        assert run.state.round == 1
        list(run.rounds())
        assert spent(tmp_path).total() == 2 and sum(run.dp.account.spending(rounds=run.state.round).values()) == 2


def test_a_repeated_round_is_debited_again(tmp_path, monkeypatch):
    """As in a notebook, where the run stays open after Ctrl-C: the clients of round 2 upload a second time."""
    local = {"noise": "local", "noise_multiplier": 4.0}
    with opened(tmp_path, privacy=local, sampler="shuffled", cohort=7) as run:
        run.step()
        for _ in range(3):
            interrupted(monkeypatch, run, after=1)
            monkeypatch.undo()
        assert run.state.round == 1 and spent(tmp_path).total() == 1 + 2  # the pass, and two more
        run.step()
        run.step()
        assert run.state.round == 3 and spent(tmp_path).total() == 4  # round 1 came a fourth time, round 2 once


def test_a_pass_is_debited_again_after_a_reset(tmp_path):
    local = {"noise": "local", "noise_multiplier": 4.0}
    with opened(tmp_path, privacy=local, sampler="shuffled", cohort=7) as run:
        run.step()
        run.dp.account.ledger.reset("dialects")
        assert spent(tmp_path).total() == 0
        run.step()
        run.step()
        assert spent(tmp_path).total() == 1


def test_a_report_counts_rounds_lost_to_a_kill(tmp_path, monkeypatch):
    with opened(tmp_path, commit_every=10) as run:
        interrupted(monkeypatch, run, after=3)
    monkeypatch.undo()
    with opened(tmp_path, commit_every=10) as run:
        assert run.state.round == 0
        list(run.rounds())
        assert sum(run.dp.account.spending(rounds=run.state.round).values()) == spent(tmp_path).total() == 5
    with opened(tmp_path, name="another") as run:  # not charged for the first run
        run.step()
        assert sum(run.dp.account.spending(rounds=run.state.round).values()) == 1


def test_rounds_before_the_budget_was_spent_are_kept(tmp_path):
    two = compute_epsilon({Release(0.4, 1.5): 2}, delta=0.01)
    with opened(tmp_path, privacy={"budget": two * 1.001}, commit_every=10) as run, pytest.raises(BudgetError):
        list(run.rounds())
    with opened(tmp_path) as run:
        assert run.state.round == 2


def test_cohorts_of_a_fixed_size_have_twice_the_noise():
    """A sensitivity of two clip norms also holds for replaced examples."""

    def noise(**options):
        settings = Privacy(epsilon=4.0, amplification=False)
        return plan_privacy(settings, users=20, rounds=10, **options)

    all_users, poisson = noise(cohort=20, sampler="shuffled"), noise(cohort=8, sampler="poisson")
    fixed = noise(cohort=8, sampler="uniform")
    assert fixed.noise_multiplier == pytest.approx(2 * poisson.noise_multiplier)
    assert fixed.release.noise_multiplier == pytest.approx(poisson.release.noise_multiplier)
    assert all_users.noise_multiplier == poisson.noise_multiplier


def test_the_ledger_is_the_same_from_a_file_and_from_python(tmp_path):
    notes = tmp_path / "notes.csv"
    rows = [f"u{user},word {user} {row},{'yes' if row % 2 else 'no'}" for user in range(4) for row in range(10)]
    notes.write_text("\n".join(["user,text,label", *rows]))
    with open_run(
        tmp_path / "run",
        method="furl",
        federation=load_federation(notes),
        settings=RunSettings(
            rounds=1, cohort=2, sampler="poisson", workers=0, withheld=0.25, privacy={**PRIVATE, "delta": 0.1}
        ),
        method_settings=SMALL,
    ) as run:
        assert run.dp.account.ledger.path == tmp_path / "notes.csv.privacy.jsonl"


def test_nan_in_statistics_and_weights_does_not_stop_a_round():
    assert clipped_metrics({"loss": torch.tensor([1e200, 3.0], dtype=torch.float64)}, 1.5)["loss"].tolist() == [
        pytest.approx(1.5), pytest.approx(1.5)
    ]  # fmt: skip
    total = clipped_sum({"scale": torch.tensor([3.0, -8.0])}, Clip({"*": 2.0}))
    assert total["scale"].shape == () and float(total["scale"]) == pytest.approx(0.0, abs=1e-6)


def test_privacy_is_rejected_for_training_on_one_server(tmp_path):
    with pytest.raises(SettingsError, match=r"central trains on one server.*use a federated method"):
        opened(tmp_path, method="central")


@pytest.mark.parametrize(("noise", "clip", "numbers"), [("central", None, 0), ("local", None, 0), ("central", 1.0, 2)])
def test_the_record_has_the_bytes_that_were_sent(tmp_path, noise, clip, numbers):
    """Without a clip norm, statistics are not sent; with central noise the size of the cohort is secret."""
    with opened(tmp_path, privacy={"noise": noise, "metrics_clip": clip}) as run:
        came = len(run.schedule.cohorts.of(0))
        record = run.step()
        whole = sum(tensor.nbytes for tensor in run.state.federated.values())
    clients = came if noise == "local" else 8
    assert record.up_bytes["statistics"] == 8 * numbers * clients
    assert record.down_bytes["federated"] == whole * clients


def test_a_private_run_can_be_measured_in_epochs(tmp_path):
    """The noise depends on the number of rounds, which is computed first."""
    with opened(tmp_path, privacy={"noise_multiplier": None, "epsilon": 4.0}, rounds=None, epochs=2) as run:
        assert (run.total_rounds, run.dp.account.plan.release.rate) == (5, 0.4)  # 20 / 8 rounds an epoch


SIX = [f"speaker {number}" for number in range(6)]
VARIANTS = [
    *((method, {}) for method in available_methods() if method not in ("alone", "central", "central_dialogue")),
    ("fedembed", {"assignment": "som", "map_step": "mean"}),
    ("fedembed", {"assignment": "personal"}),
    ("preference", {"embedding": True}),
    ("pfedme", {"personal": "all"}),
]


@pytest.mark.parametrize("noise", ["central", "local"])
@pytest.mark.parametrize(("method", "settings"), VARIANTS, ids=lambda value: str(value))
def test_every_method_can_be_private(tmp_path, method, settings, noise):
    """A round is debited and released, with noise on all shared numbers except those that no client trains."""
    module = method_module(method)
    corpus = getattr(module, "CORPUS", {"source": "dialects", "users": 6})
    ledger = str(tmp_path / "ledger.jsonl")
    privacy = {"noise": noise, "noise_multiplier": 2.0, "delta": 0.01, "insecure": True, "ledger": ledger}
    run_settings = RunSettings(rounds=1, cohort=4, sampler="poisson", workers=0, privacy=privacy)
    with open_run(
        tmp_path / "run",
        method=method,
        federation=load_federation(conversations(6, SIX))
        if method == "fednlg"
        else load_federation(corpus["source"], settings={"users": corpus["users"]}),
        settings=run_settings,
        method_settings={**getattr(module, "SMALL", {}), **settings},
    ) as run:
        start = {**run.state.federated, **run.state.keyed}
        run.step()
        then = {**run.state.federated, **run.state.keyed}
        assert sum(run.dp.account.spending(rounds=run.state.round).values()) == 1
    # sub-populations are found on the server alone: counts, which may be noise, change nothing there
    places = ("places.", "centroids", "members", "probe")
    # on the grid of releases, one number of 160,000 has noise of zero
    still = {name: int((then[name] == start[name]).sum()) for name in start if not name.startswith(places)}
    still = {name: count for name, count in still.items() if count > start[name].numel() / 1000}
    assert not still


def test_a_rejected_run_leaves_its_folder_free(tmp_path):
    with pytest.raises(SettingsError, match=r"expected at least 0\.1"):
        opened(tmp_path, privacy={"noise_multiplier": 0.01})
    with opened(tmp_path) as run:  # the corrected command, in the same folder
        run.step()


@pytest.mark.parametrize("clip", [0, -1.0, nan, "much", {}, {"*": -1}])
def test_an_invalid_clip_norm_is_one_fault(clip):
    with pytest.raises(SettingsError) as caught:
        parse(Privacy, {"clip": clip, "noise_multiplier": 1.0}, where="privacy")
    assert str(caught.value).count("clip:") == 1 and "expected a positive number" in str(caught.value)
