"""A federation: users, and the examples of each user.

Users are addressed by position, so that a population can be computed instead of stored: a million users cost nothing
until they are accessed. User names are data; any non-empty text is legal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class Images:
    """A selection of rows from pools of images.

    Images are read, possibly from disk, only on conversion to a numpy array: counting labels reads none.
    """

    pools: tuple[np.ndarray, ...]  # uint8 [images, height, width]
    pool: np.ndarray  # for every row, the index of its pool ...
    row: np.ndarray  # ... and of the image in the pool

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
    """Examples, column by column: texts or images.

    `labels`, `contexts`, `authors` and `groups` index into the federation's lists. A column that the corpus does not
    have is None.
    """

    texts: Sequence[str] = ()
    labels: np.ndarray | None = None
    contexts: np.ndarray | None = None
    authors: np.ndarray | None = None  # the user who wrote each example; differs from the holder in pooled data
    images: np.ndarray | Images | None = None  # uint8 [examples, height, width]
    groups: np.ndarray | None = None  # the author's sub-population, if the corpus knows it
    parts: np.ndarray | None = None  # 0 train, 1 eval, 2 test, if the corpus itself assigns parts
    prompts: Sequence[str | None] | None = None  # what each text replies to; None: it replies to nothing
    conversations: np.ndarray | None = None  # the conversation of each example, numbered within the corpus; -1: none
    profiles: np.ndarray | None = None  # the author's profile [examples, columns], numbered; see `Profiles`

    def __len__(self) -> int:
        return len(self.texts) if self.images is None else len(self.images)

    def take(self, rows: np.ndarray | Sequence[int]) -> Examples:
        """The examples at these rows, in this order."""
        rows = np.asarray(rows, dtype=np.int64)
        columns = {name: getattr(self, name) for name in _COLUMNS}
        return Examples(
            texts=[self.texts[row] for row in rows] if self.images is None else (),
            prompts=None if self.prompts is None else [self.prompts[row] for row in rows],
            **{name: None if column is None else column[rows] for name, column in columns.items()},
        )


_COLUMNS = tuple(field.name for field in fields(Examples) if field.name not in ("texts", "prompts"))


def concatenate(parts: Sequence[Examples]) -> Examples:
    """Concatenate examples. A column that any of them lacks is dropped."""
    columns: dict[str, Any] = {}
    for name in _COLUMNS:
        found = [column for each in parts if (column := getattr(each, name)) is not None]
        columns[name] = np.concatenate(found) if found and len(found) == len(parts) else None
    prompts = [each.prompts for each in parts if each.prompts is not None]
    return Examples(
        texts=[text for each in parts for text in each.texts],
        prompts=[prompt for some in prompts for prompt in some] if prompts and len(prompts) == len(parts) else None,
        **columns,
    )


def short_repr(federation: Federation) -> str:
    """What every federation prints: its name and sizes, never its content."""
    sizes = {"users": federation.users, "labels": federation.labels, "contexts": federation.contexts}
    counted = ", ".join(f"{len(names):,} {what}" for what, names in sizes.items() if len(names))
    return f"<Federation {federation.name}: {counted}>"


class Federation(Protocol):
    """The interface of every corpus. A corpus need not hold anything in memory."""

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
        """All examples of the user at this position, in the source's order, with `authors` set."""
        ...

    def group(self, user: int) -> str | None:
        """The user's sub-population, or None if the corpus does not know it."""
        ...
