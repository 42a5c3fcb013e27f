"""FURL's theorem: private embeddings and rows of the server's table give the same result.

Section 3 of the paper: with the loss of user i independent of other users' private parameters (Eq. 1) and
averaging that has no interaction terms (Eqs. 2 and 3), both ways give the same numbers, if both scale the
private step alike: z = 1 (Eq. 7), or z = c_i / sum c (Eq. 6).
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from homespun.core import tree
from homespun.core.method import Task, build
from homespun.data.dialects import Dialects
from homespun.data.dialects import Settings as DialectSettings
from homespun.engines.client import Client
from homespun.engines.loop import LoopTrainer
from homespun.methods import furl

USERS, ROUNDS = 5, 4
SMALL = {
    "length": 12,
    "character_dim": 4,
    "lstm_dim": 5,
    "hidden_dim": 6,
    "user_dim": 3,
    "batch": 4,
    "lr": 0.5,
}
FEDERATION = Dialects(DialectSettings(users=USERS, examples=10, ragged=0.9, classes=4, groups=3))
TASK = Task(classes=4, population=USERS)


def built_furl(settings, *, loss=furl.loss):
    method = furl.method(furl.Settings(**SMALL, **settings), TASK)
    method = replace(method, local=replace(method.local, loss=loss))
    return build(method, seed=0)


def start_table(built):
    return torch.stack([built.new_private(user, seed=0)["user.embedding"] for user in FEDERATION.users])


def train_private(keeps, *, loss=furl.loss):
    """Federated parameters and all users' embeddings after some rounds, with private embeddings."""
    built = built_furl({"users": "private", "private_update": keeps}, loss=loss)
    state, engine = built.start(), LoopTrainer(built, 0)
    private = {user: built.new_private(user, seed=0) for user in FEDERATION.users}
    for round in range(ROUNDS):
        clients = [
            Client(FEDERATION.users[position], private=private[FEDERATION.users[position]],
                   data=built.method.model.encode(FEDERATION.examples(position)))
            for position in cohort(round)
        ]  # fmt: skip
        outcome = engine.train(state.broadcast(), clients)
        state = built.method.server(state, outcome.update)
        for client in clients:
            share = client.examples / outcome.update.weight if keeps == "share" else 1.0
            old, new = client.private["user.embedding"], outcome.private[client.user]["user.embedding"]
            private[client.user] = {"user.embedding": old + share * (new - old)}
    return state.federated, torch.stack([private[user]["user.embedding"] for user in FEDERATION.users])


def train_table(keeps, *, loss=furl.loss):
    """The same with every embedding a row of the server's table."""
    built = built_furl({"users": "table", "private_update": keeps}, loss=loss)
    private = built_furl({"users": "private"})
    state = replace(built.start(), federated=private.start().federated, keyed={"user.table": start_table(private)})
    engine = LoopTrainer(built, 0)
    for round in range(ROUNDS):
        clients = [
            Client(
                FEDERATION.users[position],
                private={},
                data=built.method.model.encode(FEDERATION.examples(position)),
            )
            for position in cohort(round)
        ]
        state = built.method.server(state, engine.train(state.broadcast(), clients).update)
    return state.federated, state.keyed["user.table"]


def cohort(round):
    return [position for position in range(USERS) if position % 3 != round % 3]


def difference(left, right):
    return max(tree.max_abs_difference(left[0], right[0]), float((left[1] - right[1]).abs().max()))


@pytest.mark.parametrize("keeps", ["all", "share"])
def test_private_embeddings_and_table_agree(keeps):
    private = train_private(keeps)
    moved = float((private[1] - start_table(built_furl({"users": "private"}))).abs().max())
    assert moved > 0.01  # there is something to agree about
    assert difference(private, train_table(keeps)) < 1e-5


@pytest.mark.parametrize(("private", "server"), [("all", "share"), ("share", "all")])
def test_mixed_scalings_differ(private, server):
    assert difference(train_private(private), train_table(server)) > 0.01


def coupled_loss(predict, parameters, batch):
    """Against Eq. 1: the norm of the whole matrix of embeddings couples all users who share one."""
    table = parameters.get("user.table", parameters.get("user.embedding"))
    return furl.loss(predict, parameters, batch) + 0.5 * table.norm()


def own_norm_loss(predict, parameters, batch):
    """Within Eq. 1: each user's own norm."""
    own = parameters["user.table"][batch["author"]] if "user.table" in parameters else parameters["user.embedding"]
    return furl.loss(predict, parameters, batch) + 0.5 * own.norm(dim=-1)


def test_a_loss_that_couples_users_breaks_the_agreement():
    assert difference(train_private("all", loss=own_norm_loss), train_table("all", loss=own_norm_loss)) < 1e-5
    assert difference(train_private("all", loss=coupled_loss), train_table("all", loss=coupled_loss)) > 0.01


def test_run_scales_the_private_delta(tmp_path):
    """`private_update` is applied by the run: one round, computed by hand, z_i = c_i / sum c."""
    from homespun.runs.open_run import open_run
    from homespun.runs.settings import RunSettings

    def one_round(keeps):
        with open_run(
            tmp_path / keeps,
            method="furl",
            federation=FEDERATION,
            settings=RunSettings(rounds=1, cohort=3, engine="loop"),
            method_settings={**SMALL, "private_update": keeps},
        ) as run:
            positions = run.schedule.cohorts.of(0)
            names = [run.federation.users[position] for position in positions]
            before = {name: run.built.new_private(name, seed=0)["user.embedding"] for name in names}
            list(run.rounds())
            counts = np.array([len(run.clients.population.examples(position)) for position in positions])
            return {name: run.vault.private(name)["user.embedding"] - before[name] for name in names}, counts

    (whole, counts), (shares, _) = one_round("all"), one_round("share")
    for (name, delta), count in zip(whole.items(), counts, strict=True):
        assert torch.allclose(shares[name], delta * (count / counts.sum()), atol=1e-6)
