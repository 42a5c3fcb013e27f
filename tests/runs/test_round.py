"""The round: what a failure leaves behind, and how transforms and differential privacy go together."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from homes import clients_of

from homespun.core.errors import MessageError, UnknownNameError
from homespun.core.transforms import Transforms, UpdateTransform
from homespun.data import load_federation
from homespun.engines.cohort import CohortTrainer
from homespun.engines.loop import LoopTrainer
from homespun.methods.furl import SMALL
from homespun.privacy.dp import DpMechanism
from homespun.privacy.mechanism import Clip
from homespun.runs.open_run import open_run
from homespun.runs.round import run_round
from homespun.runs.settings import RunSettings
from homespun.runs.training import load, train

TOY = str(Path(__file__).parents[1] / "methods" / "toy.py")


def opened(folder, **settings):
    return open_run(
        folder,
        method="furl",
        federation=load_federation("dialects", settings={"users": 8, "examples": 10}),
        settings=RunSettings(**{"rounds": 3, "cohort": "all", "workers": 0, **settings}),
        method_settings=SMALL,
    )


class Failing(UpdateTransform):
    def disclosed(self, record, broadcast, update):
        raise RuntimeError("no record")


def test_a_round_that_fails_at_its_end_leaves_private_parameters_unchanged(tmp_path):
    with opened(tmp_path / "run") as run:
        run.step()
        users = list(run.federation.users)
        before = run.clients.private(users, run.state.broadcast())
        with pytest.raises(RuntimeError):
            run_round(run.built, run.engine, run.state, users, transforms=Transforms((Failing(),)))
        after = run.clients.private(users, run.state.broadcast())
    assert all(torch.equal(before[user]["user.embedding"], after[user]["user.embedding"]) for user in users)


@dataclass(frozen=True)
class Breaks(UpdateTransform):
    """Makes one user's update NaN."""

    user: str

    def on_client(self, update, broadcast, user):
        if user != self.user:
            return update
        return replace(update, federated={name: value * torch.nan for name, value in update.federated.items()})


@pytest.mark.parametrize("private", [False, True])
def test_a_transform_that_breaks_one_update_loses_only_that_update(tmp_path, private):
    dp = DpMechanism(Clip({"*": 1.0}), expected=8.0, insecure_seed=0)
    with opened(tmp_path / "run") as run:
        clients = clients_of(run, range(8))
        chain = Transforms((*((dp,) if private else ()), Breaks(clients[2].user)))
        found = LoopTrainer(run.built, 0, chain).train(run.state.broadcast(), clients)
    assert list(found.rejected) == [clients[2].user] and "after its transforms" in found.rejected[clients[2].user]
    assert all(bool(torch.isfinite(value).all()) for value in found.update.federated.values())
    assert found.update.clients == (8 if private else 7)  # or as zeros


def test_bytes_include_refused_updates(tmp_path):
    with opened(tmp_path / "run") as run:
        clients = clients_of(run, range(8))
        whole = LoopTrainer(run.built, 0).train(run.state.broadcast(), clients).sent_bytes
        lost = replace(
            clients[0], private={"user.embedding": torch.full_like(clients[0].private["user.embedding"], torch.nan)}
        )
        found = LoopTrainer(run.built, 0).train(run.state.broadcast(), [lost, *clients[1:]])
    assert len(found.rejected) == 1 and found.sent_bytes == whole


def test_a_mask_of_the_method_wraps_clipping_and_noise():
    """The server takes the mask off before it adds noise. A mask that stayed on the sum would be longer than 1."""
    noise = {"noise_multiplier": 0.2, "clip": 0.5, "delta": 0.01, "insecure": True, "amplification": False}
    corpus = load("dialects", users=12, examples=20)
    with train(TOY, corpus, rounds=1, cohort="all", sampler="uniform", workers=0, privacy=noise) as run:
        start = run.built.start().federated
        moved = max(float((run.state.federated[name] - value).abs().max()) for name, value in start.items())
    assert 0 < moved < 0.2


def test_an_unknown_user_is_rejected(tmp_path):
    with opened(tmp_path / "run") as run, pytest.raises(UnknownNameError, match="no user 'nobody'"):
        run.engine.train(run.state.broadcast(), ["nobody"])


def test_a_reply_with_more_clients_than_the_cohort_is_rejected(tmp_path):
    class Many:
        def __init__(self, engine):
            self.engine = engine

        def train(self, *asked, **how):
            found = self.engine.train(*asked, **how)
            return replace(found, update=replace(found.update, clients=9999))

    with opened(tmp_path / "run") as run, pytest.raises(MessageError, match="9999 clients, but only 8 were asked"):
        run_round(run.built, Many(run.engine), run.state, list(run.federation.users))


def test_bytes_are_counted_after_the_transforms_in_every_engine(tmp_path):
    @dataclass(frozen=True)
    class Half(UpdateTransform):
        def bytes_sent(self, update, sent):
            return {role: count // 2 for role, count in sent.items()}

    with opened(tmp_path / "run") as run:
        clients = clients_of(run, range(8))
        plain, halved = (
            [
                make(chain).train(run.state.broadcast(), clients).sent_bytes
                for make in (
                    lambda chain: LoopTrainer(run.built, 0, chain),
                    lambda chain: CohortTrainer(run.built, 0, 0, chain),
                )
            ]
            for chain in (Transforms(), Transforms((Half(),)))
        )
    assert plain[0] == plain[1] and halved[0] == halved[1] and 2 * halved[0]["federated"] == plain[0]["federated"]


def test_opening_a_run_with_rounds_counts_no_examples(tmp_path, monkeypatch):
    asked = []
    federation = load_federation("digits", settings={"users": 20})
    kind = type(federation)
    examples = kind.examples
    monkeypatch.setattr(kind, "examples", lambda self, user: asked.append(user) or examples(self, user))
    settings = RunSettings(rounds=3, cohort=4, workers=0)
    with open_run(tmp_path / "run", method="fedembed", federation=federation, settings=settings,
                  method_settings={"assignment": "som"}) as run:  # fmt: skip
        assert run.total_rounds == 3
    assert len(asked) < 5
