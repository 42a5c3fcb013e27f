"""The boundary between the server side and the clients: an engine, asked by user name.

Everything on the far side of it (examples, splits, encoded batches, private state) belongs to clients. What crosses it
is a broadcast and user names in one direction, and a sum of updates or additive scores in the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from homespun.core.messages import Broadcast, Update
from homespun.core.progress import Done, silent
from homespun.core.scoring import Counts, Part
from homespun.core.transforms import NOTHING_SENT
from homespun.core.tree import Tree
from homespun.engines.client import Client

UserSet: TypeAlias = Literal["population", "participants", "newcomers"]  # population: those who train


@dataclass(frozen=True)
class Trained:
    """A cohort's reply: the sum of its updates as they left the clients."""

    update: Update
    rejected: tuple[str, ...] = ()  # one reason for each refused update
    sent_bytes: Mapping[str, int] = field(default_factory=lambda: NOTHING_SENT)  # by role, over all clients


@dataclass(frozen=True)
class EvaluationProtocol:
    """What is scored, of whom, with which private parameters, after learning what at home."""

    part: Part  # the examples that are scored
    user_set: UserSet = "participants"
    # Personalize on this part first. None: as trained, except that parameters which a method generates from a text
    # are generated from the training part.
    adapt_to: Part | None = None
    k: int | None = None  # on this many examples of that part; None: on all
    # The user's own private parameters, those that a new user starts with, or those of the next user that is asked for.
    private: Literal["own", "prior", "another"] = "own"


class Engine(Protocol):
    """Clients, asked by user name. `done` is called with how many more of them are finished."""

    def train(self, broadcast: Broadcast, users: Sequence[str], *, done: Done = silent) -> Trained:
        """A round's local training. What clients learned in private waits for `confirm`."""
        ...

    def confirm(self, round: int, *, weight: float) -> None:
        """The round of this number is part of the server's state, with this total weight: clients keep what they
        learned in it."""
        ...

    def evaluate(
        self, broadcast: Broadcast, users: Sequence[str], protocol: EvaluationProtocol, *, done: Done = silent
    ) -> dict[str, Counts]:
        """Additive scores of those users who have any examples to score."""
        ...

    def close(self) -> None: ...


class ClientStore(Protocol):
    """Where clients live: their data, their splits, their private state."""

    def load(
        self, users: Sequence[str], part: Part, broadcast: Broadcast, *, user_set: UserSet, prior: bool = False
    ) -> list[Client]:
        """These users' clients with one part of their examples and their private parameters; with `prior`, or where a
        user has none yet, those that a new user starts with."""
        ...

    def stage(
        self, round: int, clients: Sequence[Client], trained: Mapping[str, Tree], *, weights: Mapping[str, float]
    ) -> None:
        """Keep what these clients learned in a round, in memory, until it is confirmed; with the updates' weights."""
        ...

    def confirm(self, round: int, *, weight: float) -> None:
        """Keep what was staged for this round."""
        ...
