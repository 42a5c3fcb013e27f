"""User names as sequences that need not be held: numbered, listed, or picked from another."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np

from homespun.core.errors import UnknownNameError, nearest
from homespun.data.federation import Federation

SEARCHED_FOR_A_NEAREST_NAME = 10_000  # difflib compares with every name


class Names(Sequence[str]):
    """A sequence of distinct names that is indexed by position and, quickly, by name."""

    def __init__(self, length: int) -> None:
        self._length = length

    def at(self, position: int) -> str:
        raise NotImplementedError

    def find(self, name: str) -> int | None:
        """The position of a name, or None."""
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
        # the second check refuses other spellings of the same number
        return position if 0 <= position < self._length and self.at(position) == name else None


class ListedNames(Names):
    """Names that are held, with their positions beside them."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._positions = {name: position for position, name in enumerate(self._names)}
        super().__init__(len(self._names))

    def at(self, position: int) -> str:
        return self._names[position]

    def find(self, name: str) -> int | None:
        return self._positions.get(name)


class PickedNames(Names):
    """Some names of another sequence; `positions` are ascending."""

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
        known = list(federation.users[:SEARCHED_FOR_A_NEAREST_NAME])
        raise UnknownNameError(
            f"{federation.name}: no user {name[:80]!r} among {len(federation.users)}.{nearest(name, known)}"
        ) from None
