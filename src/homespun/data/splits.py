"""Views of a federation: participants and newcomers, train/eval/test parts of each user, all users pooled.

A user's split by example depends only on the seed and the user's name, not on the other users or their order. Split by
conversation, the part of an example depends only on the seed and its conversation, so that a conversation is not torn
apart. Split by order, the first examples are for training and the last ones for testing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from homespun.core.errors import DataError, SettingsError
from homespun.core.seeds import numpy_generator
from homespun.data.columns import name_conversations
from homespun.data.federation import Examples, Federation, concatenate, short_repr
from homespun.data.profiles import Profiles
from homespun.data.table import LeftOut
from homespun.data.user_names import ListedNames, PickedNames

PartName = Literal["train", "eval", "test"]
Fractions = tuple[float, float, float]
FRACTIONS: Fractions = (0.8, 0.1, 0.1)
SplitBy = Literal["example", "conversation", "order"]
STRATUM = 10  # this many consecutive conversations are spread evenly over the parts


class Split(NamedTuple):
    """The parts of one user's examples, each in the source's order."""

    train: Examples
    eval: Examples
    test: Examples

    @property
    def adapt(self) -> Examples:
        """Every other test example or conversation: new text of a participant, to adapt to on the client."""
        return self.test.take(np.flatnonzero(_alternate(self.test) == 0))

    @property
    def scored(self) -> Examples:
        """The other half: the test set after adaptation, the same for any number of adaptation samples."""
        return self.test.take(np.flatnonzero(_alternate(self.test) == 1))


def _alternate(examples: Examples) -> np.ndarray:
    """0 and 1 in turn, for each example or, where there are conversations, for each of these."""
    if examples.conversations is None:
        return np.arange(len(examples)) % 2
    place: dict[int, int] = {}
    alone = iter(range(-1, -len(examples) - 1, -1))  # a number of its own for an example without a conversation
    numbers = [int(one) if one >= 0 else next(alone) for one in examples.conversations]
    return np.array([place.setdefault(number, len(place)) % 2 for number in numbers], dtype=np.int64)


def split(
    examples: Examples, *, seed: int, user: str, fractions: Fractions = FRACTIONS, split_by: SplitBy = "example"
) -> Split:
    """Split one user's examples at random or in their order, unless the corpus itself assigns parts.

    By example with the default fractions, a user with fewer than 5 examples gets no eval and test part. By
    conversation, any part of a user may be empty.
    """
    rows = _rows_by_part(examples, seed=seed, user=user, fractions=fractions, split_by=split_by)
    return Split(*(examples.take(some) for some in rows))


def _rows_by_part(
    examples: Examples, *, seed: int, user: str, fractions: Fractions, split_by: SplitBy
) -> list[np.ndarray]:
    """The rows for train, eval and test, each ascending."""
    parts = examples.parts
    if parts is None and split_by == "conversation":
        parts = _parts_by_conversation(examples, seed=seed, user=user, fractions=fractions)
    if parts is None and split_by == "order":
        parts = np.repeat(np.arange(3), part_sizes(len(examples), fractions))
    if parts is None:
        parts = _parts_by_example(len(examples), seed=seed, user=user, fractions=fractions)
    return [np.flatnonzero(parts == place) for place in range(3)]


def _parts_by_example(count: int, *, seed: int, user: str, fractions: Fractions) -> np.ndarray:
    """The part of each of a user's examples: 0 train, 1 eval, 2 test."""
    order = numpy_generator(seed, "split", user).permutation(count)
    parts = np.empty(count, dtype=np.int64)
    parts[order] = np.repeat(np.arange(3), part_sizes(count, fractions))
    return parts


def _parts_by_conversation(examples: Examples, *, seed: int, user: str, fractions: Fractions) -> np.ndarray:
    """The part of each example; examples without a conversation are split by example."""
    conversations = examples.conversations
    if conversations is None:
        raise SettingsError("split_by: the examples have no conversations. Split them by example.")
    parts = np.zeros(len(examples), dtype=np.int64)
    alone = conversations < 0
    parts[alone] = _parts_by_example(int(alone.sum()), seed=seed, user=user, fractions=fractions)
    count = int(conversations.max(initial=-1)) + 1
    parts[~alone] = conversation_parts(count, seed=seed, fractions=fractions)[conversations[~alone]]
    return parts


def conversation_parts(count: int, *, seed: int, fractions: Fractions = FRACTIONS) -> np.ndarray:
    """The parts of the first `count` conversations of a corpus: 0 train, 1 eval, 2 test.

    They do not depend on `count`. In each ten consecutive conversations, the parts have their shares.
    """
    return _conversation_parts(1 << max(0, count - 1).bit_length(), seed=seed, fractions=tuple(fractions))[:count]


@lru_cache(maxsize=4)  # every user's split needs them
def _conversation_parts(count: int, *, seed: int, fractions: Fractions) -> np.ndarray:
    strata = -(-count // STRATUM)
    order, jitter = numpy_generator(seed, "conversations").random((strata, 2, STRATUM)).swapaxes(0, 1)
    places = (order.argsort(axis=1).argsort(axis=1) + jitter) / STRATUM  # one in each tenth of [0, 1)
    found: np.ndarray = np.searchsorted(np.cumsum(fractions[:2]), places.ravel()[:count], side="right")
    found.setflags(write=False)
    return found


def require_conversations(federation: Federation) -> None:
    """Raise if the corpus has no conversations to split it by."""
    if len(federation.users) and federation.examples(0).conversations is None:
        remedy = name_conversations(getattr(original(federation), "columns", ()))
        raise DataError(f"{federation.name}: split_by = conversation, but the corpus has no conversations. {remedy}")


def part_sizes(count: int, fractions: Fractions = FRACTIONS) -> tuple[int, int, int]:
    """The sizes of train, eval and test. Eval and test are rounded half up; train gets the rest, at least one."""
    if len(fractions) != 3 or min(fractions) < 0 or fractions[0] <= 0 or abs(sum(fractions) - 1) > 1e-9:
        raise SettingsError(
            f"fractions: {tuple(fractions)}: expected three shares for train, eval and test that sum to 1, with train "
            "above 0, for example 0.8, 0.1, 0.1"
        )
    # rounding first: 0.1 * 45 must count as 4.5 despite floating-point error
    evaluation, test = (math.floor(round(share * count, 9) + 0.5) for share in fractions[1:])
    while count and evaluation + test >= count:
        evaluation, test = (evaluation, test - 1) if test >= evaluation else (evaluation - 1, test)
    return count - evaluation - test, evaluation, test


@dataclass(frozen=True, repr=False)
class SplitPart:
    """A federation restricted to one part of every user's examples. Users with an empty part remain."""

    federation: Federation
    part: PartName
    seed: int
    fractions: Fractions = FRACTIONS
    split_by: SplitBy = "example"

    __repr__ = short_repr

    @property
    def name(self) -> str:
        return f"{self.federation.name}/{self.part}"

    @property
    def fingerprint(self) -> str:
        by = "" if self.split_by == "example" else f" by {self.split_by}"
        return _derived(self.federation, f"{self.part} {self.seed} {self.fractions}{by}")

    @property
    def users(self) -> Sequence[str]:
        return self.federation.users

    @property
    def labels(self) -> tuple[str, ...]:
        return self.federation.labels

    @property
    def contexts(self) -> tuple[str, ...]:
        return self.federation.contexts

    def examples(self, user: int) -> Examples:
        everything = self.federation.examples(user)
        rows = _rows_by_part(
            everything, seed=self.seed, user=self.users[user], fractions=self.fractions, split_by=self.split_by
        )
        return everything.take(rows[("train", "eval", "test").index(self.part)])

    def group(self, user: int) -> str | None:
        return self.federation.group(user)


def select_part(
    federation: Federation,
    name: PartName,
    *,
    seed: int,
    fractions: Fractions = FRACTIONS,
    split_by: SplitBy = "example",
) -> SplitPart:
    """A view in which every user has only their `train`, `eval` or `test` examples."""
    part_sizes(0, fractions)  # rejects wrong fractions here, before any examples are read
    return SplitPart(federation, name, seed, fractions, split_by)


@dataclass(frozen=True, eq=False, repr=False)
class Subset:
    """A federation restricted to the users at these positions, which are ascending."""

    federation: Federation
    positions: np.ndarray = field(repr=False)
    name: str

    __repr__ = short_repr

    @property
    def fingerprint(self) -> str:
        positions = hashlib.sha256(self.positions.astype("<i8").tobytes()).hexdigest()
        return _derived(self.federation, f"subset {positions}")

    @cached_property
    def users(self) -> Sequence[str]:
        return PickedNames(self.federation.users, self.positions)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.federation.labels

    @property
    def contexts(self) -> tuple[str, ...]:
        return self.federation.contexts

    @property
    def left_out(self) -> LeftOut:
        """What the corpus left out. Withheld users do not count: they are in the other subset."""
        return getattr(self.federation, "left_out", LeftOut())

    @property
    def place(self) -> Path | None:
        return getattr(self.federation, "place", None)

    @property
    def profiles(self) -> Profiles | None:
        whole: Profiles | None = getattr(self.federation, "profiles", None)
        return None if whole is None else whole.take(self.positions)

    def examples(self, user: int) -> Examples:
        found = self.federation.examples(self._position(user))
        authors = np.full(len(found), user, dtype=np.int64)
        return replace(found, authors=authors)

    def group(self, user: int) -> str | None:
        return self.federation.group(self._position(user))

    def _position(self, user: int) -> int:
        if not 0 <= user < len(self.positions):
            raise IndexError(f"no user {user} among {len(self.positions)}")
        return int(self.positions[user])


PARTICIPANTS = "/participants"


MOST_USERS = 2**24  # of a run: dividing them takes memory for each


def original(federation: Federation) -> Federation:
    """The federation that this one is a subset of, or itself."""
    return federation.federation if isinstance(federation, Subset) else federation


def original_name(federation: Federation) -> str:
    """The name of a federation before users were withheld."""
    return federation.name.removesuffix(PARTICIPANTS)


def withhold(
    federation: Federation,
    *,
    seed: int,
    share: float | None = None,
    count: int | None = None,
    fold: int | None = None,
) -> tuple[Subset, Subset]:
    """Split the users into participants and newcomers, whom training never sees.

    With `fold`, users are withheld as in cross-validation: over all folds every user is withheld exactly once. The last
    fold may be smaller.
    """
    users = len(federation.users)
    if users > MOST_USERS:
        raise DataError(f"{federation.name}: {users:,} users. A run can have {MOST_USERS:,}; lower their number.")
    if (share is None) == (count is None):
        raise SettingsError("withhold: give either a share or a count of users")
    # rounded half up, like the parts of a user's examples
    withheld = math.floor(round(share * users, 9) + 0.5) if share is not None else int(count or 0)
    if not 0 <= withheld < users:
        raise SettingsError(f"withhold: {withheld} of {users} users cannot be withheld. At least one must remain.")
    if fold is None:
        chosen = numpy_generator(seed, "withhold").choice(users, size=withheld, replace=False, shuffle=False)
    else:
        folds = math.ceil(users / withheld) if withheld else 0
        if fold >= folds:
            raise SettingsError(
                f"fold: there is no fold {fold}. Withholding {withheld} of {users} users makes {folds}."
            )
        chosen = numpy_generator(seed, "folds").permutation(users)[fold * withheld : (fold + 1) * withheld]
    takes_part = np.ones(users, dtype=bool)
    takes_part[chosen] = False
    return (
        Subset(federation, np.flatnonzero(takes_part), federation.name + PARTICIPANTS),
        Subset(federation, np.flatnonzero(~takes_part), f"{federation.name}/newcomers"),
    )


@dataclass(frozen=True, repr=False)
class PooledFederation:
    """The examples of all users as one user called `server`, as in central training.

    `authors` is the position in `federation` of each example's user. All examples stay in memory after the first
    access.
    """

    federation: Federation

    __repr__ = short_repr

    @property
    def name(self) -> str:
        return f"{self.federation.name}/pooled"

    @property
    def fingerprint(self) -> str:
        return _derived(self.federation, "pooled")

    @property
    def users(self) -> Sequence[str]:
        return ListedNames(["server"])

    @property
    def labels(self) -> tuple[str, ...]:
        return self.federation.labels

    @property
    def contexts(self) -> tuple[str, ...]:
        return self.federation.contexts

    def examples(self, user: int) -> Examples:
        if user != 0:
            raise IndexError(f"no user {user} among 1")
        return self._everything

    def group(self, user: int) -> str | None:
        return None

    @cached_property
    def _everything(self) -> Examples:
        parts = [self.federation.examples(user) for user in range(len(self.federation.users))]
        authors = np.repeat(np.arange(len(parts)), [len(each) for each in parts])
        return replace(concatenate(parts), authors=authors, parts=None)


def pool_users(federation: Federation) -> PooledFederation:
    """Pool the examples of all users. Central training uses `pool_users(select_part(federation, "train", seed=7))`."""
    return PooledFederation(federation)


def sample_users(federation: Federation, *, at_most: int, seed: int) -> list[int]:
    """The positions of all users, or of a fixed random sample if there are more than `at_most`."""
    users = len(federation.users)
    if users <= at_most:
        return list(range(users))
    draw = numpy_generator(seed, "evaluated users").choice(users, at_most, replace=False, shuffle=False)
    return sorted(int(position) for position in draw)


def _derived(federation: Federation, how: str) -> str:
    return hashlib.sha256(f"{federation.fingerprint} {how}".encode()).hexdigest()
