"""With privacy a rejected update counts as zero: stopping the round would disclose, without noise, that it occurred."""

from dataclasses import replace

import pytest
import torch

from homespun.core.messages import state_to_bytes
from homespun.core.method import Task, build
from homespun.core.transforms import Transforms
from homespun.data import load_federation
from homespun.engines.client import Client
from homespun.engines.cohort import CohortTrainer
from homespun.engines.loop import LoopTrainer
from homespun.methods.furl import SMALL
from homespun.privacy.dp import DpMechanism
from homespun.privacy.mechanism import Clip
from homespun.privacy.noise import grid_of, seeded_normal
from homespun.runs.open_run import open_run
from homespun.runs.settings import RunSettings
from homespun.system.method_loading import load_method

USERS = 8


def opened(folder, **privacy):
    given = {"noise_multiplier": 1.5, "clip": 0.05, "insecure": True, "delta": 0.01, "amplification": False, **privacy}
    return open_run(
        folder / "run",
        method="furl",
        federation=load_federation("dialects", settings={"users": USERS, "examples": 10}),
        settings=RunSettings(
            rounds=2, cohort="all", sampler="uniform", workers=0, privacy={**given, "ledger": str(folder / "ledger")}
        ),
        method_settings=SMALL,
    )


def spoil(run, users):
    """Make the personal embeddings of these users NaN in training, and with them their whole update."""
    load = run.clients.load

    def spoiled(*asked, **how):
        return [
            replace(client, private={"user.embedding": torch.full_like(client.private["user.embedding"], torch.nan)})
            if client.user in users
            else client
            for client in load(*asked, **how)
        ]

    object.__setattr__(run.clients, "load", spoiled)


@pytest.mark.parametrize("noise", ["central", "local"])
@pytest.mark.parametrize("engine", ["loop", "cohort"])
def test_a_round_whose_updates_are_all_rejected_looks_like_any_other(tmp_path, noise, engine):
    with opened(tmp_path, noise=noise) as run:
        if engine == "loop":
            run.trainer = LoopTrainer(run.built, 0, run.transforms)
        start = run.state
        spoil(run, run.clients.population.users)
        record = run.step()
        assert (record.clients, record.rejected, run.state.round) == (USERS, 0, 1)
        assert run.vault.users() == []  # clients keep their previous private state: none
        deviation = 1.5 * 0.05
        for name, value in start.federated.items():
            moved = USERS * (run.state.federated[name] - value)  # only noise
            expected = deviation if noise == "central" else deviation * USERS**0.5
            assert moved.numel() < 100 or float(moved.std()) == pytest.approx(expected, rel=0.2)
        assert sum(run.dp.account.spending(rounds=run.state.round).values()) == 1


def test_the_noise_is_that_of_a_round_of_zero_updates(tmp_path):
    with opened(tmp_path) as run:
        start = run.state
        spoil(run, run.clients.population.users)
        run.step()
        normal, grid = seeded_normal(0, "central", 0), grid_of(1.5 * 0.05)
        for name, value in sorted(start.federated.items()):
            noise = torch.from_numpy(1.5 * 0.05 * normal(value.numel())).reshape(value.shape)
            released = ((noise / grid).round() * grid).float()
            assert torch.equal(run.state.federated[name], value + released / USERS)


def test_only_rejected_clients_keep_their_previous_private_state(tmp_path):
    with opened(tmp_path) as run:
        run.step()
        users = run.clients.population.users
        before = run.clients.private(users, run.state.broadcast())
        spoil(run, users[:5])  # more than half
        run.step()
        run.commit()
        after = run.clients.private(users, run.state.broadcast())
    same = [torch.equal(before[user]["user.embedding"], after[user]["user.embedding"]) for user in users]
    assert same == [True] * 5 + [False] * 3


def test_without_privacy_a_round_stops_if_half_of_the_updates_are_rejected(tmp_path):
    from homespun.core.errors import MessageError

    with open_run(
        tmp_path / "run",
        method="furl",
        federation=load_federation("dialects", settings={"users": USERS, "examples": 10}),
        settings=RunSettings(rounds=1, cohort="all", workers=0),
        method_settings=SMALL,
    ) as run:
        before = state_to_bytes(run.state)
        spoil(run, run.clients.population.users[:4])
        with pytest.raises(MessageError, match="4 of 8 updates were rejected, because of NaN"):
            run.step()
        assert state_to_bytes(run.state) == before


# ---- updates of one client


@pytest.fixture(scope="module")
def preferences():
    """A method with heads for sub-populations, of which a client sends one, and a client whose training fails."""
    task = Task(classes=2, population=12, contexts=3, image=(28, 28))
    built = build(load_method("fedembed", {"assignment": "type"}, task), seed=0)
    image = torch.full((2, 28, 28), torch.nan)
    columns = {"label": torch.tensor([0, 1]), "kind": torch.tensor([0, 2]), "group": torch.tensor([1, 1])}
    return built, Client("lost", built.new_private("lost", seed=0), {"image": image, **columns})


@pytest.mark.parametrize("engine", [LoopTrainer, CohortTrainer])
def test_with_local_noise_a_client_that_failed_sends_noise_in_every_row(preferences, engine):
    """It looks like any other update; a missing one would disclose that the client failed."""
    built, lost = preferences
    noise = Transforms((DpMechanism(Clip({"*": 1.0}, metrics=2.0), 2.0, local=True, insecure_seed=5),))
    start = built.start().broadcast()
    made = engine(built, 0, noise) if engine is LoopTrainer else engine(built, 0, 0, noise)
    found = made.train(start, [lost])
    assert list(found.rejected) == ["lost"] and found.private == {}
    update = found.update
    assert (update.weight, update.clients) == (1.0, 1) and all(update.metrics.values())
    for name, table in start.keyed.items():
        rows = update.keyed[name]
        assert rows.index.tolist() == list(range(len(table))) and rows.weight.tolist() == [1.0] * len(table)
        assert (rows.values != 0).all()
    assert all((tensor != 0).float().mean() > 0.999 for tensor in update.federated.values())


@pytest.mark.parametrize("engine", [LoopTrainer, CohortTrainer])
def test_with_central_noise_it_adds_zero(preferences, engine):
    built, lost = preferences
    noise = Transforms((DpMechanism(Clip({"*": 1.0}, metrics=2.0)),))
    made = engine(built, 0, noise) if engine is LoopTrainer else engine(built, 0, 0, noise)
    update = made.train(built.start().broadcast(), [lost]).update
    assert (update.weight, update.clients) == (1.0, 1) and not any(update.metrics.values())
    assert all(bool((tensor == 0).all()) for tensor in update.federated.values())
    assert all(len(rows.index) == 0 for rows in update.keyed.values())
