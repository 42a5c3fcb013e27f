"""Who takes part when, what a round leaves behind, and what a run refuses."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from homespun.cli import app
from homespun.core.errors import MethodError, RunError, SettingsError
from homespun.core.messages import Broadcast, Candidate, Rows, Update, state_to_bytes
from homespun.core.settings import parse
from homespun.core.transforms import broadcast_bytes, message_bytes
from homespun.data import load_federation
from homespun.data.federation import Examples
from homespun.engines.simulation import k_shot
from homespun.methods.furl import SMALL
from homespun.runs.clients import EncodedBatches, take_evenly_spaced
from homespun.runs.controls import evaluate_controls
from homespun.runs.evaluate import evaluate, evaluate_newcomers
from homespun.runs.open_run import open_run
from homespun.runs.settings import RunSettings
from homespun.runs.training import CurvePoint, separate_settings, train, train_and_evaluate


def federation(users=11, **settings):
    return load_federation("dialects", settings={"users": users, "examples": 10, **settings})


def opened(folder, *, method="furl", users=11, method_settings=None, **settings):
    return open_run(
        folder,
        method=method,
        federation=federation(users),
        settings=RunSettings(**{"rounds": 4, "cohort": 4, "workers": 0, **settings}),
        method_settings={**SMALL, **(method_settings or {})},
    )


def finished(folder, **settings):
    with opened(folder, **settings) as run:
        for _ in run.rounds():
            pass
        return state_to_bytes(run.state), {user: run.vault.export(user) for user in run.vault.users()}


def test_a_pass_has_every_user_once(tmp_path):
    with opened(tmp_path / "run") as run:
        cohorts = [run.schedule.cohorts.of(round) for round in range(6)]
    assert [len(cohort) for cohort in cohorts] == [4, 4, 3, 4, 4, 3]
    for epoch in (cohorts[:3], cohorts[3:]):
        assert sorted(position for cohort in epoch for position in cohort) == list(range(11))
    assert cohorts[:3] != cohorts[3:]


def test_uniform_cohorts_have_no_repeats_and_differ(tmp_path):
    with opened(tmp_path / "run", sampler="uniform") as run:
        cohorts = [run.schedule.cohorts.of(round) for round in range(30)]
    assert all(len(set(cohort)) == 4 for cohort in cohorts)
    assert len({tuple(cohort) for cohort in cohorts}) > 20


def test_encoded_examples_are_cached(tmp_path):
    with opened(tmp_path / "run") as run:
        first = run.clients.encode(run.clients.population, 0, "train")
        assert run.clients.encode(run.clients.population, 0, "train") is first
        again = run.clients.encode(run.clients.population, 0, "eval")
    assert again is not first


def test_the_least_recently_used_batches_are_evicted():
    kept, made = EncodedBatches(limit_bytes=80), []

    def batch(size):
        made.append(size)
        return {"column": torch.zeros(size, dtype=torch.uint8)}

    def get(size):
        return kept.get(size, lambda: batch(size))

    assert get(30) is get(30) and made == [30]
    get(40)
    get(30)
    get(20)  # 90 bytes: 40 was used least recently
    get(30)
    assert made == [30, 40, 20] and kept.bytes == 50
    get(40)
    assert made == [30, 40, 20, 40]
    get(100)  # one that is too large is kept alone
    assert kept.bytes == 100


def test_epochs_are_converted_to_rounds(tmp_path):
    with opened(tmp_path / "a", rounds=None, epochs=2.0) as run:
        assert (run.total_rounds, run.schedule.rounds_per_epoch) == (6, 3)  # 4 + 4 + 3 of 11 users: none is left out
    with opened(tmp_path / "d", rounds=None, epochs=2.0, sampler="uniform") as run:
        assert (run.total_rounds, run.schedule.rounds_per_epoch) == (6, 11 / 4)
    with opened(tmp_path / "b", method="central", rounds=None, epochs=2.0) as run:
        assert (run.total_rounds, run.schedule.rounds_per_epoch) == (2, 1)
    with opened(tmp_path / "c", cohort=50) as run:
        assert run.schedule.cohorts.size == 11


@pytest.mark.parametrize("wrong", [{}, {"rounds": 1, "epochs": 1}, {"rounds": 0}, {"rounds": 1, "withheld": 1.0},
                                   {"rounds": 1, "fractions": (0.8, 0.1, 0.2)}])  # fmt: skip
def test_invalid_settings_are_rejected(wrong):
    with pytest.raises(SettingsError):
        parse(RunSettings, wrong, where="run")


def test_a_round_is_recorded_with_its_traffic(tmp_path):
    with opened(tmp_path / "run") as run:
        (record,) = [next(run.rounds())]
        size = sum(value.nbytes for value in run.state.federated.values())
        examples = sum(len(run.clients.population.examples(position)) for position in run.schedule.cohorts.of(0))
    assert (record.round, record.clients, record.examples) == (1, 4, examples)
    assert record.down_bytes == {"federated": 4 * size, "keyed": 0, "private": 0}
    assert record.up_bytes == {"federated": 4 * size, "keyed": 0, "statistics": 4 * 24, "private": 0}
    assert 1.0 < record.loss < 4.0


def test_bytes_of_messages():
    rows = Rows(torch.tensor([0, 2]), torch.zeros(2, 5), torch.ones(2, dtype=torch.float64))
    update = Update(0, {"w": torch.zeros(3)}, {"table": rows}, {"loss": 1.0, "examples": 2.0}, weight=1.0, clients=1)
    # 3 floats; 2 rows of an index, a weight and 5 floats; a weight and two statistics
    assert message_bytes(update) == {"federated": 12, "keyed": 2 * (8 + 8 + 20), "statistics": 24, "private": 0}
    disclosed = replace(update, statistics={"m": torch.zeros(2)}, best={"w": Candidate(-1.0, torch.zeros(3))})
    assert message_bytes(disclosed)["statistics"] == 24 + 8 + 8 + 12  # two numbers, a score and its three numbers
    down = broadcast_bytes(Broadcast(0, {"w": torch.zeros(3)}, {"table": torch.zeros(4, 5)}), clients=2)
    assert down == {"federated": 24, "keyed": 160, "private": 0}
    served = Broadcast(0, {"w": torch.zeros(3)}, {}, {"map": torch.zeros(5)})
    assert broadcast_bytes(served, clients=2) == {"federated": 24, "keyed": 0, "server": 40, "private": 0}


def test_a_method_without_private_parameters_leaves_the_vault_without_rows(tmp_path):
    assert finished(tmp_path / "run", method="fedavg")[1] == {}


@pytest.mark.parametrize(
    "settings",
    [
        {"commit_every": 3},
        {"sampler": "uniform"},
        {"method_settings": {"private_update": "share"}, "commit_every": 2},
        {"method_settings": {"server": "fedadam", "server_lr": 0.01}},
        {"method": "central"},
    ],
)
def test_resumed_equals_uninterrupted(tmp_path, settings):
    whole = finished(tmp_path / "whole", rounds=5, **settings)
    finished(tmp_path / "parts", rounds=2, **settings)
    assert finished(tmp_path / "parts", rounds=5, **settings) == whole


def test_commit_every_does_not_change_results(tmp_path):
    assert finished(tmp_path / "every") == finished(tmp_path / "third", commit_every=3)


def test_an_uncommitted_round_leaves_no_trace(tmp_path):
    whole = finished(tmp_path / "whole")
    with opened(tmp_path / "run", commit_every=3) as run:
        run.step()
        run.step()  # neither was committed
    assert finished(tmp_path / "run") == whole


def test_another_run_in_the_folder_is_rejected(tmp_path):
    finished(tmp_path / "run")
    with pytest.raises(RunError, match="different run"):
        opened(tmp_path / "run", seed=1)
    with pytest.raises(RunError, match="different run"):
        opened(tmp_path / "run", users=12)


def test_newcomers_never_take_part(tmp_path):
    with train(
        "furl", federation(), folder=tmp_path / "run", rounds=4, cohort=4, workers=0, withheld=0.3, **SMALL
    ) as run:
        trained = set(run.vault.users())
        assert len(run.newcomers.users) == 3
        assert trained.isdisjoint(run.newcomers.users)
        assert trained == set(run.federation.users)
        before = run.vault.state
        found = evaluate_newcomers(run)
        assert list(found) == ["0", "1", "5", "20", "all"]
        tests = [run.clients.split(run.newcomers, position).test for position in range(3)]
        assert {one.examples for one in found.values()} == {sum(len(test) for test in tests)}  # one fixed test set
        assert run.vault.state == before and set(run.vault.users()) == trained


def test_evaluations_use_their_own_part(tmp_path):
    with opened(tmp_path / "run", rounds=1, evaluate_every=1) as run:
        sizes = {
            name: sum(len(getattr(run.clients.split(run.federation, position), name)) for position in range(11))
            for name in ("train", "eval", "test")
        }
        assert {name: evaluate(run, name).examples for name in sizes} == sizes
        points = [event for event in train_and_evaluate(run) if isinstance(event, CurvePoint)]
        assert points[0].evaluation == evaluate_before(run, tmp_path)
        assert evaluate_controls(run)["majority"].examples == sizes["test"]


def evaluate_before(run, folder):
    """The evaluation part as an untrained run sees it."""
    with opened(folder / "untrained", rounds=1) as fresh:
        return evaluate(fresh, "eval")


def test_no_user_has_enough_examples_to_be_evaluated(tmp_path):
    few = load_federation("dialects", settings={"users": 6, "examples": 1, "ragged": 0.0})
    with train("furl", few, folder=tmp_path / "run", rounds=2, cohort=4, workers=0, **SMALL) as run:
        assert evaluate(run).users == 0 and np.isnan(evaluate(run).accuracy)
        assert run.state.round == 2


def test_a_setting_cannot_belong_to_both_the_method_and_the_run(tmp_path):
    (tmp_path / "own.py").write_text(
        "from homespun.methods import furl\nclass Settings(furl.Settings):\n    cohort: int = 3\nmethod = furl.method\n"
    )
    with pytest.raises(MethodError, match="cohort is a setting of the run already"):
        train(str(tmp_path / "own.py"), federation(), rounds=1)


@pytest.mark.parametrize("method", ["fedperc", "fedperc_generated", "split_learning", "meta_learning"])
def test_the_papers_epochs_are_the_default(method):
    assert separate_settings(method, {})[0]["epochs"] == 55
    assert separate_settings(method, {"epochs": 2})[0]["epochs"] == 2
    short = separate_settings(method, {"rounds": 7})[0]
    assert short["rounds"] == 7 and "epochs" not in short
    assert parse(RunSettings, short, where="run").cohort == "all"


@pytest.mark.parametrize(
    ("command", "length"),
    [
        (["furl"], {"epochs": 10}),
        (["fedperc"], {"epochs": 55}),
        (["fedperc", "--rounds", "3"], {"rounds": 3}),
        (["fedperc", "--set", "rounds=3"], {"rounds": 3}),
        (["furl", "--epochs", "2"], {"epochs": 2}),
    ],
)
def test_the_papers_epochs_are_the_default_of_the_command(monkeypatch, command, length):
    def caught(method, federation, *, settings, **_):
        raise RuntimeError(separate_settings(method, settings)[0])

    monkeypatch.setattr("homespun.runs.training.prepare", caught)
    outcome = CliRunner().invoke(app, ["train", *command, "--data-set", "users=3"])
    (settings,) = outcome.exception.args
    assert {name: settings[name] for name in ("rounds", "epochs") if name in settings} == length


def test_training_examples_are_never_tested_on(tmp_path):
    with opened(tmp_path / "run") as run:
        for position in range(11):
            parts = run.clients.split(run.federation, position)
            whole = run.federation.examples(position)
            assert sorted([*parts.train.texts, *parts.eval.texts, *parts.test.texts]) == sorted(whole.texts)
            assert run.clients.population.examples(position).texts == parts.train.texts


def test_central_training_has_all_training_examples_and_their_authors(tmp_path):
    with opened(tmp_path / "run", method="central") as run:
        everything = run.clients.population.examples(0)
        for position in range(11):
            own = np.flatnonzero(everything.authors == position)
            assert [everything.texts[row] for row in own] == list(
                run.clients.split(run.federation, position).train.texts
            )


def test_the_curve_is_complete_after_a_resume(tmp_path):
    def curve(stops):
        for stop in stops:
            with opened(tmp_path / str(len(stops)), rounds=stop, evaluate_every=2) as run:
                list(train_and_evaluate(run))
                history = run.history()
        return [(one["round"], one["value"]) for one in history if one["kind"] == "evaluation"]

    assert curve([6]) == curve([2, 4, 6])
    assert [round for round, _ in curve([6])] == [0, 2, 4, 6]


@pytest.mark.system
def test_training_beats_chance(tmp_path):
    """Twelve users in two groups: a private embedding learns which labels its user has."""
    users = federation(12, groups=2, classes=4, strength=1.0, examples=60, noise=0.0, dialect=0.0)
    sizes = {"character_dim": 16, "lstm_dim": 32, "hidden_dim": 32, "user_dim": 4, "length": 30}
    with train(
        "furl", users, folder=tmp_path / "run", rounds=60, cohort=6, workers=0, lr=0.5, evaluate_every=60, **sizes
    ) as run:
        assert evaluate(run, "train").accuracy > 0.6


def test_shots_are_drawn_and_nested():
    data = {"label": torch.arange(10, 30)}

    def drawn(count, seed=0):
        return k_shot(data, count, draw=np.random.default_rng(seed))["label"].tolist()

    assert (drawn(0), drawn(99), drawn(None)) == ([], list(range(10, 30)), list(range(10, 30)))
    few, more = drawn(3), drawn(8)
    assert len(few) == 3 and set(few) < set(more) and more == sorted(more)
    assert few not in ([10, 11, 12], drawn(3, seed=1))


def test_evaluated_examples_are_limited_and_evenly_spaced():
    examples = Examples([str(number) for number in range(11)])
    assert take_evenly_spaced(examples, 3).texts == ["0", "5", "10"]
    assert take_evenly_spaced(examples, 11) is examples and take_evenly_spaced(examples, None) is examples
