"""A federation: users, and each user's own examples.

Users are addressed by position, so that a population can be a formula instead of a list: a million
users cost nothing until someone asks for one of them. Names are data; any non-empty text is legal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Examples:
    """Some examples, column by column. `labels`, `contexts` and `authors` index into the federation's
    lists; a column the corpus does not have is None."""

    texts: Sequence[str]
    labels: np.ndarray | None = None
    contexts: np.ndarray | None = None
    authors: np.ndarray | None = None  # who wrote it, where one holder has many people's examples

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: np.ndarray | Sequence[int]) -> Examples:
        """The examples at these rows, in this order."""
        rows = np.asarray(rows, dtype=np.int64)
        return Examples(
            texts=[self.texts[row] for row in rows],
            labels=None if self.labels is None else self.labels[rows],
            contexts=None if self.contexts is None else self.contexts[rows],
            authors=None if self.authors is None else self.authors[rows],
        )


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
