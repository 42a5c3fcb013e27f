"""Users that the server itself holds, FedEmbed's prototypical users: it trains their embeddings in every round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from homespun.core.devices import CPU
from homespun.core.errors import SettingsError
from homespun.core.intake import rejected_error
from homespun.core.messages import Broadcast
from homespun.core.method import Batch, BuiltMethod, Phase, optimizers
from homespun.core.roles import Role
from homespun.core.statistics import stacks
from homespun.core.tree import Tree
from homespun.data.federation import Federation
from homespun.data.preferences import Preferences
from homespun.engines.client import Client
from homespun.engines.cohort import CohortTrainer


@dataclass(frozen=True)
class PrototypicalUsers:
    """Trains the server's own users for a round: called with a broadcast, it returns the stacked statistics."""

    built: BuiltMethod
    examples: Sequence[Batch]  # of each of them
    seed: int
    device: str = CPU

    def __call__(self, broadcast: Broadcast) -> Tree:
        found: dict[str, Tensor] = {}
        for table, statistic in stacks(self.built.method.local.statistics).items():
            found[table] = self._trained(broadcast, table, statistic.parameter)
        return found

    def _trained(self, broadcast: Broadcast, table: str, own: str) -> Tensor:
        users = [f"prototype {row}" for row in range(len(self.examples))]
        clients = [
            Client(user, private={**self._new_private(user, broadcast), own: embedding}, data=data)
            for user, embedding, data in zip(users, broadcast.server[table], self.examples, strict=True)
        ]
        outcome = self._trainer.train(broadcast, clients)
        if outcome.rejected:  # all of them are needed
            reasons = outcome.rejected.values()
            raise rejected_error("updates of prototypical users", reasons, round=broadcast.round)
        return torch.stack([outcome.private[user][own] for user in users])

    @cached_property
    def _trainer(self) -> CohortTrainer:
        return CohortTrainer(private_only(self.built), self.seed, workers=0, device=self.device)

    def _new_private(self, user: str, broadcast: Broadcast) -> Tree:
        return self.built.new_private(user, seed=self.seed, broadcast=broadcast)


def private_only(built: BuiltMethod) -> BuiltMethod:
    """Without training what is shared: of the server's own users it would not be used."""
    private = built.partition.names(Role.PRIVATE)
    phases = tuple(
        replace(phase, trains=optimizers(phase, private)) if isinstance(phase, Phase) else phase
        for phase in built.method.local.phases
    )
    local = replace(built.method.local, phases=phases, statistics={})
    return replace(built, method=replace(built.method, local=local))


def prototypical_users(
    built: BuiltMethod, federation: Federation, *, seed: int, device: str = CPU
) -> PrototypicalUsers:
    """One for every row of the method's stacked statistic, with examples of the corpus."""
    tables = list(stacks(built.method.local.statistics))
    if not tables:
        return PrototypicalUsers(built, (), seed)
    if not isinstance(federation, Preferences):
        raise SettingsError(
            f"{federation.name}: {built.method.name} needs prototypical users, and this corpus has none. "
            "Set assignment to som, which finds sub-populations without them."
        )
    rows, kinds = len(built.initial[tables[0]]), len(federation.contexts)
    examples = [built.method.model.encode(federation.prototypical(row % kinds, row // kinds)) for row in range(rows)]
    return PrototypicalUsers(built, examples, seed, device)
