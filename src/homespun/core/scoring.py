"""Scores that add up: what a client reports of an evaluation, and how reports become a result.

A client sends counts and sums over its own examples, and the evaluation of many clients follows from theirs. Only an
exact AUC needs more: how often each score was given (see `LabelScoring`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
from torch import Tensor

Counts: TypeAlias = dict[str, np.ndarray]  # of one user
Part: TypeAlias = Literal["train", "eval", "test", "adapt", "scored"]  # of a user's examples


class Evaluation(Protocol):
    """How a model fares on one part of the data."""

    @property
    def examples(self) -> int: ...

    @property
    def headline(self) -> tuple[str, float]:
        """The metric that is shown first, and its value."""
        ...

    def to_dict(self) -> dict[str, Any]: ...


class Scoring:
    """What evaluation means for a method: labels, token losses. A method's own kind is a subclass."""

    k_shot: ClassVar[tuple[int | None, ...]] = (0, 1, 5, 20, None)  # numbers of own examples to adapt to; None: all
    scored_part: ClassVar[Part] = "test"  # that final evaluations score
    offers: ClassVar[frozenset[str]] = frozenset()  # what can be done for a user: "predict", "generate"
    # Whether results have participants who adapt further, and each user's scores, to compare methods user by user
    by_user: ClassVar[bool] = False
    # How reports show the headline metric: as a share in percent, and which direction is better
    percent: ClassVar[bool] = True
    lower_is_better: ClassVar[bool] = False

    def score(self, data: Mapping[str, Tensor], output: Tensor) -> Counts:
        """One user's counts from their examples and the model's output for them."""
        raise NotImplementedError

    def summarize(self, counts: Sequence[Counts]) -> Any:
        """The evaluation of these users; it has the properties of `Evaluation`."""
        raise NotImplementedError

    def require(self, corpus: str, *, method: str) -> None:
        """Raise where a corpus lacks what is scored."""
