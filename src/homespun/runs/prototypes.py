"""Prototypical users: the server itself holds them, and trains their embeddings beside every round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from homespun.core.devices import CPU
from homespun.core.errors import SettingsError
from homespun.core.intake import refused_error
from homespun.core.messages import Broadcast
from homespun.core.method import Batch, Built, optimizers
from homespun.core.roles import Role
from homespun.core.tree import Tree
from homespun.data.federation import Federation
from homespun.data.preferences import Preferences
from homespun.engines.client import Client
from homespun.engines.cohort import CohortEngine


@dataclass(frozen=True)
class PrototypicalUsers:
    """Trains the server's own users for a round: called with a broadcast, it returns the new table of prototypes."""

    built: Built
    examples: Sequence[Batch]  # of each of them
    seed: int
    device: str = CPU

    def __call__(self, broadcast: Broadcast) -> Tree:
        if self.built.method.prototypes is None:
            return {}
        table, own = self.built.method.prototypes
        users = [f"prototype {row}" for row in range(len(self.examples))]
        clients = [
            Client(user, private={**self._new_private(user, broadcast), own: embedding}, data=data)
            for user, embedding, data in zip(users, broadcast.federated[table], self.examples, strict=True)
        ]
        outcome = self._trainer.work(broadcast, clients)
        if outcome.refused:  # all of them are needed
            reasons = outcome.refused.values()
            raise refused_error("updates of prototypical users", reasons, round=broadcast.round)
        return {table: torch.stack([outcome.private[user][own] for user in users])}

    @cached_property
    def _trainer(self) -> CohortEngine:
        return CohortEngine(private_only(self.built), self.seed, workers=0, device=self.device)

    def _new_private(self, user: str, broadcast: Broadcast) -> Tree:
        return self.built.new_private(user, seed=self.seed, broadcast=broadcast)


def private_only(built: Built) -> Built:
    """Without training what is shared: of the server's own users it would not be used."""
    private = built.partition.names(Role.PRIVATE)
    phases = tuple(replace(phase, trains=optimizers(phase, private)) for phase in built.method.phases)
    return replace(built, method=replace(built.method, phases=phases))


def prototypical_users(built: Built, federation: Federation, *, seed: int, device: str = CPU) -> PrototypicalUsers:
    """One for every row of the method's prototypes, with examples of the corpus."""
    if built.method.prototypes is None:
        return PrototypicalUsers(built, (), seed)
    if not isinstance(federation, Preferences):
        raise SettingsError(
            f"{federation.name}: {built.method.name} needs prototypical users, and this corpus has none. "
            "Set assignment to som, which finds sub-populations without them."
        )
    rows, kinds = len(built.initial[built.method.prototypes[0]]), len(federation.contexts)
    examples = [built.method.encode(federation.prototypical(row % kinds, row // kinds)) for row in range(rows)]
    return PrototypicalUsers(built, examples, seed, device)
