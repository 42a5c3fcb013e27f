"""The boundary between server and clients: an engine, which is called with user names.

Examples, splits, encoded batches and private state stay behind it, with the clients. Only a broadcast and user names
cross it in one direction, and a sum of updates or additive scores in the other.
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

UserSet: TypeAlias = Literal["population", "participants", "newcomers"]  # population: users to train on


@dataclass(frozen=True)
class Trained:
    """The result of a round's training: the sum of the cohort's transformed updates."""

    update: Update
    rejected: tuple[str, ...] = ()  # one reason per rejected update
    sent_bytes: Mapping[str, int] = field(default_factory=lambda: NOTHING_SENT)  # by role, over all clients


@dataclass(frozen=True)
class EvaluationProtocol:
    """What is scored, for which users, with which private parameters, after which personalization."""

    part: Part  # the examples that are scored
    user_set: UserSet = "participants"
    # Personalize on this part first. None: score with the trained parameters; a method that generates private
    # parameters from a text generates them from the training part.
    adapt_to: Part | None = None
    k: int | None = None  # number of examples to personalize on; None: all
    # The user's own private parameters, the initial ones of a new user, or those of the next user in the list.
    private: Literal["own", "prior", "another"] = "own"


class Engine(Protocol):
    """Runs clients by user name. `done` is called with the number of clients finished since the last call."""

    def train(self, broadcast: Broadcast, users: Sequence[str], *, done: Done = silent) -> Trained:
        """Train a cohort locally. Trained private parameters are staged until `confirm`."""
        ...

    def personalize(self, broadcast: Broadcast, users: Sequence[str], *, done: Done = silent) -> None:
        """Personalize participants on their training parts. Their private parameters, and their copies of shared ones
        that changed, are staged until `confirm`; nothing is uploaded."""
        ...

    def confirm(self, round: int, *, weight: float) -> None:
        """Commit the staged private parameters of a round, which is now part of the server's state, with the total
        weight of its updates. The weight is 0 after personalization: clients keep what they learned."""
        ...

    def evaluate(
        self, broadcast: Broadcast, users: Sequence[str], protocol: EvaluationProtocol, *, done: Done = silent
    ) -> dict[str, Counts]:
        """Return the additive scores of the users that have examples to score."""
        ...

    def close(self) -> None: ...


class ClientStore(Protocol):
    """Storage of clients: their data, splits and private state."""

    def load(
        self, users: Sequence[str], part: Part, broadcast: Broadcast, *, user_set: UserSet, prior: bool = False
    ) -> list[Client]:
        """Return these users' clients with one part of their examples and their private parameters. With `prior`, or if
        a user has none yet, these are the initial ones of a new user."""
        ...

    def stage(
        self, round: int, clients: Sequence[Client], trained: Mapping[str, Tree], *, weights: Mapping[str, float]
    ) -> None:
        """Hold the trained private parameters of a round, and the weights of its updates, in memory until `confirm`."""
        ...

    def confirm(self, round: int, *, weight: float) -> None:
        """Commit what was staged for this round."""
        ...
