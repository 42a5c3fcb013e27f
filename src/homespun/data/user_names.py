"""Sequences of user names, stored or computed, and lookup by name or part of a name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np

from homespun.core.errors import UnknownNameError, nearest
from homespun.data.federation import Federation

MAX_COMPARED_NAMES = 10_000  # when suggesting the nearest name; difflib compares with every one
SHOWN_NAMES = 8


class Names(Sequence[str]):
    """A sequence of distinct names with fast lookup by position and by name."""

    def __init__(self, length: int) -> None:
        self._length = length

    def at(self, position: int) -> str:
        raise NotImplementedError

    def find(self, name: str) -> int | None:
        """The position of a name, or None if it is absent."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[str]: ...
    def __getitem__(self, position: int | slice) -> str | Sequence[str]:
        if isinstance(position, slice):
            return [self.at(row) for row in range(*position.indices(self._length))]
        return self.at(range(self._length)[position])

    def __iter__(self) -> Iterator[str]:
        return (self.at(position) for position in range(self._length))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None

    def index(self, name: str, start: int = 0, stop: int | None = None) -> int:
        position = self.find(name)
        if position is None or position not in range(self._length)[start:stop]:
            raise ValueError("no such name")
        return position

    def __repr__(self) -> str:
        return f"<{self._length} names>"


class NumberedNames(Names):
    """`user-000000`, `user-000001`, ...: computed, never stored."""

    def __init__(self, length: int, *, first: int = 0) -> None:
        super().__init__(length)
        self._first = first

    def at(self, position: int) -> str:
        return f"user-{self._first + position:06d}"

    def find(self, name: str) -> int | None:
        digits = re.fullmatch(r"user-([0-9]{6,18})", name)
        position = int(digits[1]) - self._first if digits else -1
        # the second check rejects other spellings of the same number
        return position if 0 <= position < self._length and self.at(position) == name else None


class ListedNames(Names):
    """Names stored in memory, with an index of their positions."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._positions = {name: position for position, name in enumerate(self._names)}
        super().__init__(len(self._names))

    def at(self, position: int) -> str:
        return self._names[position]

    def find(self, name: str) -> int | None:
        return self._positions.get(name)


class PickedNames(Names):
    """A selection from another sequence of names; `positions` are ascending."""

    def __init__(self, names: Sequence[str], positions: np.ndarray) -> None:
        super().__init__(len(positions))
        self._names, self._positions = names, positions

    def at(self, position: int) -> str:
        return self._names[int(self._positions[position])]

    def find(self, name: str) -> int | None:
        try:
            wanted = self._names.index(name)
        except ValueError:
            return None
        place = int(np.searchsorted(self._positions, wanted))
        return place if place < len(self) and self._positions[place] == wanted else None


def find_user(federation: Federation, name: str) -> int:
    """The position of the user with this name."""
    try:
        return federation.users.index(name)
    except ValueError:
        known = list(federation.users[:MAX_COMPARED_NAMES])
        raise UnknownNameError(
            f"{federation.name}: no user {name[:80]!r} among {len(federation.users)}.{nearest(name, known)}"
        ) from None


def match_name(name: str, options: Iterable[str], *, kind: str, where: str) -> str:
    """The option with this name, or the only option that contains it: 'kennedy' matches 'John F. Kennedy'.

    An exact match takes precedence over a match that ignores case, and that over a partial match.
    """
    known = list(options)
    if name in known:
        return name
    folded = name.strip().casefold()
    whole = [option for option in known if option.casefold() == folded]
    found = whole or [option for option in known if folded and folded in option.casefold()]
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownNameError(f"{where}: {len(found)} {kind}s match {name!r}: {_listed(found)}. Name one of them.")
    listed = f" There are: {_listed(known)}." if len(known) <= SHOWN_NAMES else f" There are {len(known)}."
    raise UnknownNameError(f"{where}: no {kind} {name[:80]!r}.{_nearest_part(folded, known)}{listed}")


def _nearest_part(folded: str, known: Sequence[str]) -> str:
    """` Did you mean 'John F. Kennedy'?` for 'kenedy': compares with whole names and with their words."""
    some = known[:MAX_COMPARED_NAMES]
    parts = {part: option for option in some for part in (*option.casefold().split(), option.casefold())}
    matches = difflib.get_close_matches(folded, parts, n=1, cutoff=0.6)
    return f" Did you mean {parts[matches[0]]!r}?" if matches else ""


def _listed(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > SHOWN_NAMES else ""
    return ", ".join(repr(name) for name in names[:SHOWN_NAMES]) + more
