"""FedEmbed's prototypical users: users on the server, which trains their embeddings in every round."""

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
    """Trains the prototypical users for a round: called with a broadcast, it returns the stacked statistics."""

    built: BuiltMethod
    examples: Sequence[Batch]  # of each prototypical user
    seed: int
    device: str = CPU

    def __call__(self, broadcast: Broadcast) -> Tree:
        found: dict[str, Tensor] = {}
        for table, statistic in stacks(self.built.method.local.statistics).items():
            found[table] = self._train(broadcast, table, statistic.parameter)
        return found

    def _train(self, broadcast: Broadcast, table: str, parameter: str) -> Tensor:
        users = [f"prototype {row}" for row in range(len(self.examples))]
        clients = [
            Client(user, private={**self._new_private(user, broadcast), parameter: embedding}, data=data)
            for user, embedding, data in zip(users, broadcast.server[table], self.examples, strict=True)
        ]
        outcome = self._trainer.train(broadcast, clients)
        if outcome.rejected:  # a row cannot be left out
            reasons = outcome.rejected.values()
            raise rejected_error("updates of prototypical users", reasons, round=broadcast.round)
        return torch.stack([outcome.private[user][parameter] for user in users])

    @cached_property
    def _trainer(self) -> CohortTrainer:
        return CohortTrainer(without_shared_training(self.built), self.seed, workers=0, device=self.device)

    def _new_private(self, user: str, broadcast: Broadcast) -> Tree:
        return self.built.new_private(user, seed=self.seed, broadcast=broadcast)


def without_shared_training(built: BuiltMethod) -> BuiltMethod:
    """The method with private parameters trained only: the shared updates of prototypical users are not used."""
    private = built.partition.names(Role.PRIVATE)
    phases = tuple(
        replace(phase, trains=optimizers(phase, private)) if isinstance(phase, Phase) else phase
        for phase in built.method.local.phases
    )
    local = replace(built.method.local, phases=phases, statistics={})
    return replace(built, method=replace(built.method, local=local))


def make_prototypical_users(
    built: BuiltMethod, federation: Federation, *, seed: int, device: str = CPU
) -> PrototypicalUsers:
    """One user for every row of the method's stacked statistic, with examples of the corpus."""
    tables = list(stacks(built.method.local.statistics))
    if not tables:
        return PrototypicalUsers(built, (), seed)
    if not isinstance(federation, Preferences):
        raise SettingsError(
            f"{federation.name}: {built.method.name} needs prototypical users, but this corpus has none. "
            "Set assignment to som, which finds sub-populations without them."
        )
    rows, kinds = len(built.initial[tables[0]]), len(federation.contexts)
    examples = [built.method.model.encode(federation.prototypical(row % kinds, row // kinds)) for row in range(rows)]
    return PrototypicalUsers(built, examples, seed, device)
