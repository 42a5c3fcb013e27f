"""Private state between training and confirmation of a round, and a client store in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from homespun.core.messages import Broadcast
from homespun.core.method import BuiltMethod
from homespun.core.scoring import Part
from homespun.core.tree import Tree
from homespun.engines.client import Client
from homespun.engines.protocol import UserSet


@dataclass(frozen=True)
class Staged:
    """Trained private parameters of a round that is not confirmed yet."""

    clients: Sequence[Client]  # before the round
    trained: Mapping[str, Tree]
    weights: Mapping[str, float]

    def kept(self, built: BuiltMethod, *, weight: float) -> Mapping[str, Tree]:
        """Return what clients keep: the trained values (Eq. 7 of FURL), or a step by their share of weight (Eq. 6)."""
        if built.method.local.private_update == "all" or weight == 0:
            return self.trained
        return {
            client.user: _step(client.private, self.trained[client.user], share=self.weights[client.user] / weight)
            for client in self.clients
            if client.user in self.trained
        }


def _step(before: Tree, trained: Tree, *, share: float) -> dict[str, Tensor]:
    """Move by `share` of the difference; new tensors, integers and tensors of another shape are taken as trained."""
    return {
        name: before[name] + share * (value - before[name])
        if name in before and value.is_floating_point() and value.shape == before[name].shape
        else value
        for name, value in trained.items()
    }


@dataclass
class StagedRounds:
    """Holds the staged state of one round: the last one that was trained."""

    _rounds: dict[int, Staged] = field(default_factory=dict)

    def put(self, round: int, staged: Staged) -> None:
        self._rounds.clear()  # a repeated round starts from the confirmed state
        self._rounds[round] = staged

    def pop(self, round: int) -> Staged | None:
        return self._rounds.pop(round, None)


class MemoryClients:
    """A `ClientStore` of given clients, each with a single part of examples; for checks and benchmarks."""

    def __init__(self, built: BuiltMethod, clients: Iterable[Client], *, seed: int) -> None:
        self.built, self.seed = built, seed
        self.clients = {client.user: client for client in clients}
        self._staged = StagedRounds()

    def load(
        self, users: Sequence[str], part: Part, broadcast: Broadcast, *, user_set: UserSet, prior: bool = False
    ) -> list[Client]:
        clients = [self.clients[user] for user in users]
        if not prior:
            return clients
        new = (self.built.new_private(user, seed=self.seed, broadcast=broadcast) for user in users)
        return [replace(client, private=private) for client, private in zip(clients, new, strict=True)]

    def stage(
        self, round: int, clients: Sequence[Client], trained: Mapping[str, Tree], *, weights: Mapping[str, float]
    ) -> None:
        self._staged.put(round, Staged(clients, trained, weights))

    def confirm(self, round: int, *, weight: float) -> None:
        staged = self._staged.pop(round)
        for user, private in (staged.kept(self.built, weight=weight) if staged else {}).items():
            self.clients[user] = replace(self.clients[user], private=private)
