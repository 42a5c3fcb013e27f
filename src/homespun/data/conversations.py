"""Which conversation each example of a corpus belongs to, and which example it replies to."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from homespun.data.columns import CONVERSATION, DECIDING, TOGETHER, Columns


class ConversationIndex:
    """Numbers the conversations of examples while a corpus is read.

    In automatic mode the columns that name a conversation are known only at the end, because a column may first occur
    in a late row. Until then, each distinct combination of cells has a number.
    """

    def __init__(self, columns: Columns) -> None:
        self.chosen = columns.conversation_columns
        self.read = list(self.chosen)  # in automatic mode, the columns found so far
        self.decided = bool(self.chosen)  # there is something to collect
        self.keys: dict[tuple[Hashable, ...], int] = {}
        self.rows = array("q")

    def notice(self, names: Iterable[str]) -> None:
        """Take note of columns that occur in the corpus."""
        if not self.chosen:
            self.read += [one for one in names if one in (CONVERSATION, *TOGETHER) and one not in self.read]
            self.decided = not DECIDING.isdisjoint(self.read) or CONVERSATION in self.read

    def add(self, values: Mapping[str, Any]) -> None:
        """Add one example."""
        if not self.decided:
            self.rows.append(-1)
            return
        cells = tuple([values.get(name) for name in self.read])
        try:
            self.rows.append(self.keys.setdefault(cells, len(self.keys)))
        except TypeError:  # a list or an object, which names nothing
            cells = tuple(cell if isinstance(cell, str | int | float) else None for cell in cells)
            self.rows.append(self.keys.setdefault(cells, len(self.keys)))

    def resolve(self) -> np.ndarray | None:
        """The number of each example's conversation, in order of first appearance, or -1; None if there is none.

        An example that lacks one of the columns belongs to no conversation.
        """
        names = [_name(cells, width=len(self.read)) for cells in self.keys]
        present = [name for place, name in enumerate(self.read) if any(cells[place] is not None for cells in names)]
        used = [self.read.index(name) for name in self._naming(present)]
        numbers: dict[tuple[str | None, ...], int] = {}
        number_of = np.full(len(names) + 1, -1)  # the last one is for rows without a key, -1
        for key, cells in enumerate(names):
            found = tuple(cells[place] for place in used)
            if used and None not in found:
                number_of[key] = numbers.setdefault(found, len(numbers))
        return number_of[np.frombuffer(self.rows, dtype=np.int64)] if numbers else None

    def _naming(self, present: Sequence[str]) -> Sequence[str]:
        if self.chosen:
            return self.chosen
        if CONVERSATION in present:
            return (CONVERSATION,)
        return present if not DECIDING.isdisjoint(present) else ()


def _name(cells: tuple[Hashable, ...], *, width: int) -> tuple[str | None, ...]:
    """The cells as text; None if missing, blank, or not yet a column when the row was read."""
    texts = (None if cell is None or not (text := str(cell)).strip() else text for cell in cells)
    return (*texts, *[None] * (width - len(cells)))


def opening_turns(conversation_of: np.ndarray) -> np.ndarray:
    """For each row, whether it is the first one of a conversation."""
    found = np.zeros(len(conversation_of), dtype=bool)
    conversations, first = np.unique(conversation_of, return_index=True)
    found[first[conversations >= 0]] = True
    return found


def previous_turns(conversation_of: np.ndarray, speaker_of: np.ndarray) -> np.ndarray:
    """For each row, the row that it replies to, or -1.

    This is the previous row of the same conversation, if another speaker said it. Rows of other conversations may lie
    between the two.
    """
    order = np.argsort(conversation_of, kind="stable")
    before, after = order[:-1], order[1:]
    pairs = (conversation_of[before] == conversation_of[after]) & (conversation_of[after] >= 0)
    pairs &= speaker_of[before] != speaker_of[after]
    found = np.full(len(conversation_of), -1)
    found[after[pairs]] = before[pairs]
    return found
