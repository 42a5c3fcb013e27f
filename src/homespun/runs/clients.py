"""The clients of a simulation: their data, their splits, their encoded batches and, in the run's vault, their private
state."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from homespun.core.errors import UnknownNameError, VaultError
from homespun.core.messages import Broadcast
from homespun.core.method import Batch, BuiltMethod
from homespun.core.roles import SHARED, Role
from homespun.core.scoring import Part
from homespun.core.tree import Tree
from homespun.data.federation import Examples, Federation
from homespun.data.splits import Fractions, Split, SplitBy, pool_users, select_part, split
from homespun.engines.client import Client
from homespun.engines.protocol import UserSet
from homespun.engines.staging import Staged, StagedRounds
from homespun.runs.vault import Vault

MAX_ENCODED_BYTES = 2**31  # of encoded examples in memory; 900 users of speech have 1.4 GB


@dataclass(frozen=True, eq=False)
class SimulatedClients:
    """A `ClientStore` with the private state of all clients in one vault."""

    built: BuiltMethod
    participants: Federation
    newcomers: Federation  # users who never take part
    vault: Vault
    seed: int
    fractions: Fractions
    split_by: SplitBy = "example"
    evaluate_examples: int | None = None  # maximum number that is scored per user
    keep_copies: bool = False  # whether participants may have copies of shared parameters, as new users may
    _staged: StagedRounds = field(default_factory=StagedRounds)
    _encoded: EncodedBatches = field(default_factory=lambda: EncodedBatches(limit_bytes=MAX_ENCODED_BYTES))

    @cached_property
    def population(self) -> Federation:
        """The clients that train: every participant with the training part, or one server that has all of them."""
        training = select_part(
            self.participants, "train", seed=self.seed, fractions=self.fractions, split_by=self.split_by
        )
        return pool_users(training) if self.built.method.local.pooled else training

    def load(
        self, users: Sequence[str], part: Part, broadcast: Broadcast, *, user_set: UserSet, prior: bool = False
    ) -> list[Client]:
        federation: Federation = getattr(self, user_set)
        unknown = [user for user in users if user not in federation.users]
        if unknown:
            raise UnknownNameError(f"{federation.name}: no user {unknown[0]!r} among the {user_set}.")
        new = {user: self.new_private(user, broadcast) for user in users} if prior else {}
        private = new or self.private(users, broadcast)
        positions = [federation.users.index(user) for user in users]
        return [
            Client(user, private=private[user], data=self.encode(federation, position, part))
            for user, position in zip(users, positions, strict=True)
        ]

    def stage(
        self, round: int, clients: Sequence[Client], trained: Mapping[str, Tree], *, weights: Mapping[str, float]
    ) -> None:
        rows = {user: private for user, private in trained.items() if private}
        self._staged.put(round, Staged(clients, rows, weights))

    def confirm(self, round: int, *, weight: float) -> None:
        """Pass trained private parameters to the vault, which commits them with the server's state."""
        staged = self._staged.pop(round)
        if staged is not None:
            self.vault.stage(staged.kept(self.built, weight=weight))

    # Private state

    def private(self, users: Sequence[str], broadcast: Broadcast) -> dict[str, Tree]:
        """Private parameters from the vault or, for a user that has none, those a new user starts from."""
        known = self.stored_private(users)
        return {user: known[user] if user in known else self.new_private(user, broadcast) for user in users}

    def stored_private(self, users: Sequence[str]) -> Mapping[str, Tree]:
        """The private parameters in the vault, of those users that have any. A row of another method is rejected."""
        parts, initial = self.built.partition, self.built.initial
        private, shared = parts.select(initial, Role.PRIVATE), parts.select(initial, *SHARED)
        if self.built.method.model.private_varies:
            return self._stored_of_any_shape(users)
        without = [user for user in users if not self.keep_copies and user in self.population.users]
        others = [user for user in users if self.keep_copies or user not in self.population.users]
        return {
            **self.vault.private_many(without, like=private),
            **self.vault.private_many(others, like=private, copies=shared),
        }

    def _stored_of_any_shape(self, users: Sequence[str]) -> Mapping[str, Tree]:
        """Rows may have any private names and, after personalization, shared names."""
        found = self.vault.private_many(users)
        faults = [f"user {user!r}" for user, row in found.items() if not self._fits(row)]
        if faults:
            raise VaultError(
                f"{self.vault.path}: the entry of {', '.join(faults)} does not fit this run. It is not used, and not "
                "replaced automatically: `homespun vault forget RUN USER` removes one, so that the user starts as new."
            )
        return found

    def _fits(self, row: Tree) -> bool:
        roles = {name: self.built.partition.role_of(name) for name in row}
        shared = {name: value for name, value in row.items() if roles[name] in SHARED}
        private = {name: value for name, value in row.items() if roles[name] is Role.PRIVATE}
        same = all(
            name in self.built.initial
            and value.shape == self.built.initial[name].shape
            and value.dtype == self.built.initial[name].dtype
            for name, value in shared.items()
        )
        return same and len(shared) + len(private) == len(row) and self.built.method.model.private_fits(private)

    def new_private(self, user: str, broadcast: Broadcast) -> Tree:
        return self.built.new_private(user, seed=self.seed, broadcast=broadcast)

    # Examples

    def encode(self, federation: Federation, position: int, part: Part) -> Batch:
        """One user's part as tensors. Recently used ones are cached."""

        def encoded() -> Batch:
            is_training_part = federation is self.population
            examples = (
                federation.examples(position) if is_training_part else getattr(self.split(federation, position), part)
            )
            if part in ("eval", "test", "scored"):
                examples = take_evenly_spaced(examples, self.evaluate_examples)
            return self._encode_part(examples, user=federation.users[position])

        return self._encoded.get((id(federation), position, part), encoded)  # federations live as long as the store

    def _encode_part(self, examples: Examples, *, user: str) -> Batch:
        spec = self.built.method.model
        if spec.encode_part is not None:
            for federation in (self.participants, self.newcomers):
                if user in federation.users:
                    return spec.encode_part(examples, federation.examples(federation.users.index(user)))
        return spec.encode(examples)

    def split(self, federation: Federation, position: int) -> Split:
        """One user's training, evaluation and test examples."""
        return split(
            federation.examples(position),
            seed=self.seed,
            user=federation.users[position],
            fractions=self.fractions,
            split_by=self.split_by,
        )


class EncodedBatches:
    """An LRU cache of batches, limited in bytes."""

    def __init__(self, *, limit_bytes: int) -> None:
        self.limit_bytes, self.bytes = limit_bytes, 0
        self._batches: OrderedDict[Hashable, Batch] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Batch]) -> Batch:
        if key not in self._batches:
            self._batches[key] = make()
            self.bytes += _bytes_of(self._batches[key])
        self._batches.move_to_end(key)
        while self.bytes > self.limit_bytes and len(self._batches) > 1:
            self.bytes -= _bytes_of(self._batches.popitem(last=False)[1])
        return self._batches[key]


def take_evenly_spaced(examples: Examples, at_most: int | None) -> Examples:
    """All examples, or `at_most` of them, evenly spaced."""
    if at_most is None or len(examples) <= at_most:
        return examples
    return examples.take(np.linspace(0, len(examples) - 1, at_most).round().astype(np.int64))


def _bytes_of(batch: Batch) -> int:
    return sum(tensor.nbytes for tensor in batch.values())
