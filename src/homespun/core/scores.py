"""Scores that add up: what a client reports of an evaluation, and how reports become a result.

A client never sends the model's outputs. It sends counts and sums of its own examples, and the evaluation of many
clients follows from theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from torch import Tensor

Counts: TypeAlias = dict[str, np.ndarray]  # of one user


class Evaluation(Protocol):
    """How a model fares on one part of the data."""

    @property
    def examples(self) -> int: ...

    @property
    def headline(self) -> tuple[str, float]:
        """The metric that is shown first, and its value."""
        ...

    def to_dict(self) -> dict[str, Any]: ...


class Scoring(Protocol):
    """What evaluation means for a method: labels, token losses."""

    def score(self, data: Mapping[str, Tensor], output: Tensor) -> Counts:
        """One user's counts from their examples and the model's output for them."""
        ...

    def summarize(self, counts: Sequence[Counts]) -> Any:
        """The evaluation of these users."""
        ...
