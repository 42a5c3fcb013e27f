"""Private state between a round's training and its confirmation, and clients that live in memory."""

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
    """What clients learned in a round, until the round is confirmed."""

    clients: Sequence[Client]  # as they were before the round
    trained: Mapping[str, Tree]
    weights: Mapping[str, float]

    def kept(self, built: BuiltMethod, *, weight: float) -> Mapping[str, Tree]:
        """What clients keep: all they learned (FURL's Eq. 7), or their update's share of the round's weight (Eq. 6)."""
        if built.method.local.private_update == "all" or weight == 0:
            return self.trained
        return {
            client.user: _step(client.private, self.trained[client.user], share=self.weights[client.user] / weight)
            for client in self.clients
            if client.user in self.trained
        }


def _step(before: Tree, trained: Tree, *, share: float) -> dict[str, Tensor]:
    """A share of the way; of what is new, or no number that can be shared, all of it."""
    return {
        name: before[name] + share * (value - before[name])
        if name in before and value.is_floating_point() and value.shape == before[name].shape
        else value
        for name, value in trained.items()
    }


@dataclass
class StagedRounds:
    """What was staged and waits for confirmation: of one round, the last one that was trained."""

    _rounds: dict[int, Staged] = field(default_factory=dict)

    def put(self, round: int, staged: Staged) -> None:
        self._rounds.clear()  # a round that is tried again starts from what was confirmed
        self._rounds[round] = staged

    def pop(self, round: int) -> Staged | None:
        return self._rounds.pop(round, None)


class MemoryClients:
    """A `ClientStore` of clients that are given once, each with one part of its examples; for checks and benchmarks."""

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
