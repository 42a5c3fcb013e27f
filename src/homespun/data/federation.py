"""A federation: users, and each user's own examples.

Users are addressed by position, so that a population can be a formula instead of a list: a million
users cost nothing until someone asks for one of them. Names are data; any non-empty text is legal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class Images:
    """Rows of some pools of images, which stay where they are, on disk perhaps, until numpy asks for them: whoever
    only counts labels reads none."""

    pools: tuple[np.ndarray, ...]  # uint8 [images, height, width]
    pool: np.ndarray  # of every row, which one ...
    row: np.ndarray  # ... and where in it

    def __len__(self) -> int:
        return len(self.row)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self.pools[0].shape[1:])

    def __getitem__(self, rows: np.ndarray) -> Images:
        return Images(self.pools, self.pool[rows], self.row[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        found = np.empty(self.shape, dtype=dtype or self.pools[0].dtype)
        for number, pool in enumerate(self.pools):
            here = self.pool == number
            found[here] = pool[self.row[here]]
        return found


@dataclass(frozen=True)
class Examples:
    """Some examples, column by column: texts, or images in their place. `labels`, `contexts`, `authors` and `groups`
    index into the federation's lists; a column the corpus does not have is None."""

    texts: Sequence[str] = ()
    labels: np.ndarray | None = None
    contexts: np.ndarray | None = None
    authors: np.ndarray | None = None  # who wrote it, where one holder has many people's examples
    images: np.ndarray | Images | None = None  # uint8 [examples, height, width]
    groups: np.ndarray | None = None  # the author's sub-population, where the corpus knows it
    parts: np.ndarray | None = None  # 0 train, 1 eval, 2 test, where the corpus itself says so

    def __len__(self) -> int:
        return len(self.texts) if self.images is None else len(self.images)

    def take(self, rows: np.ndarray | Sequence[int]) -> Examples:
        """The examples at these rows, in this order."""
        rows = np.asarray(rows, dtype=np.int64)
        columns = {name: getattr(self, name) for name in _COLUMNS}
        return Examples(
            texts=[self.texts[row] for row in rows] if self.images is None else (),
            **{name: None if column is None else column[rows] for name, column in columns.items()},
        )


_COLUMNS = tuple(field.name for field in fields(Examples) if field.name != "texts")


def concatenate(parts: Sequence[Examples]) -> Examples:
    """One after another; a column that one of them lacks is left out."""
    columns: dict[str, Any] = {}
    for name in _COLUMNS:
        found = [column for each in parts if (column := getattr(each, name)) is not None]
        columns[name] = np.concatenate(found) if found and len(found) == len(parts) else None
    return Examples(texts=[text for each in parts for text in each.texts], **columns)


class Federation(Protocol):
    """What every corpus offers. Nothing here is held in memory unless the corpus chooses to."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str:
        """Changes when the data does."""
        ...

    @property
    def users(self) -> Sequence[str]: ...

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names by index; empty when the corpus has none."""
        ...

    @property
    def contexts(self) -> tuple[str, ...]: ...

    def examples(self, user: int) -> Examples:
        """All examples of the user at this position, in the source's order, `authors` filled in."""
        ...

    def group(self, user: int) -> str | None:
        """The user's known sub-population, where the corpus knows it."""
        ...
