"""Profiles of users: what chosen columns of a corpus say about them, for instance gender and age."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MOST_FREQUENT = 10  # values of a column that a report lists


@dataclass(frozen=True)
class Profiles:
    """The profile of each user, one value per column.

    Values are numbered by column: 0 is unknown, 1 the first one by name. A user whose rows have different values has
    the most frequent one; of equally frequent ones, the first in the corpus.
    """

    columns: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]  # of each column, sorted
    number_of: np.ndarray  # int64 [users, columns]
    varies: np.ndarray  # bool [users, columns]: whether the rows of the user have different values

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many numbers each column has, unknown included."""
        return tuple(len(some) + 1 for some in self.values)

    def take(self, users: np.ndarray | Sequence[int]) -> Profiles:
        """The profiles of the users at these positions, with the same numbers."""
        rows = np.asarray(users, dtype=np.int64)
        return Profiles(self.columns, self.values, self.number_of[rows], self.varies[rows])

    def named(self, numbers: Iterable[int]) -> dict[str, str | None]:
        """The values with these numbers, by column; None: unknown."""
        found = zip(self.columns, self.values, numbers, strict=True)
        return {name: values[number - 1] if number else None for name, values, number in found}

    def numbers(self, profile: Mapping[str, str | None]) -> np.ndarray:
        """The numbers of a profile. A column that it lacks, and a value that no user has, are unknown."""
        found = [profile.get(name) for name in self.columns]
        return np.array(
            [values.index(one) + 1 if one in values else 0 for one, values in zip(found, self.values, strict=True)],
            dtype=np.int64,
        )


class ProfileIndex:
    """Counts the values of each user while a corpus is read."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.columns = columns
        self.counts: dict[int, tuple[Counter[str], ...]] = {}

    def add(self, user: int, values: Sequence[str | None]) -> None:
        """Add one row of a user. None: it has no value."""
        counts = self.counts.setdefault(user, tuple(Counter() for _ in self.columns))
        for count, value in zip(counts, values, strict=True):
            if value is not None:
                count[value] += 1

    def resolve(self, users: Sequence[int]) -> Profiles | None:
        """The profiles of these users; None without columns."""
        if not self.columns:
            return None
        counts = [self.counts[user] for user in users]
        common = [[one.most_common(1)[0][0] if one else None for one in each] for each in counts]
        by_column = zip(*common, strict=True)
        values = tuple(tuple(sorted({one for one in column if one is not None})) for column in by_column)
        place = [{value: number for number, value in enumerate(some, start=1)} for some in values]
        numbers = [[each.get(one or "", 0) for each, one in zip(place, row, strict=True)] for row in common]
        varies = [[len(one) > 1 for one in each] for each in counts]
        return Profiles(self.columns, values, np.array(numbers, dtype=np.int64), np.array(varies, dtype=bool))


@dataclass(frozen=True)
class ProfileReport:
    """What users have in one column of the profile, for `homespun data check`."""

    values: int
    users: dict[str, int]  # with each of the most frequent values
    unknown: int  # users without a value
    several: int  # users whose rows have different values
    single: int  # values that only one user has

    def __str__(self) -> str:
        listed = ", ".join(f"{value}: {count}" for value, count in self.users.items())
        more = ", ..." if self.values > len(self.users) else ""
        notes = [f"values: {self.values}" + (f" ({listed}{more})" if listed else "")]
        notes += [f"users with unknown value: {self.unknown}"] if self.unknown else []
        notes += [f"users with several: {self.several} (the most frequent counts)"] if self.several else []
        notes += [f"values of one user only: {self.single} (they identify the user)"] if self.single else []
        return "; ".join(notes)


def inspect_profiles(federation: Any) -> dict[str, ProfileReport]:
    """A report on each column of the profile; empty if the corpus has none."""
    profiles: Profiles | None = getattr(federation, "profiles", None)
    return {} if profiles is None else {name: _inspect(profiles, place) for place, name in enumerate(profiles.columns)}


def _inspect(profiles: Profiles, place: int) -> ProfileReport:
    counts = np.bincount(profiles.number_of[:, place], minlength=profiles.sizes[place])
    by_value = Counter(dict(zip(profiles.values[place], counts[1:].tolist(), strict=True)))
    return ProfileReport(
        values=len(by_value),
        users=dict(by_value.most_common(MOST_FREQUENT)),
        unknown=int(counts[0]),
        several=int(profiles.varies[:, place].sum()),
        single=int((counts[1:] == 1).sum()),
    )
