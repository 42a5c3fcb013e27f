"""Additive scores: what a client reports in an evaluation, and how reports are combined.

A client reports counts and sums over its own examples; the evaluation of many clients is computed from these. An exact
AUC also needs a histogram of the model's scores (see `LabelScoring`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
from torch import Tensor

Counts: TypeAlias = dict[str, np.ndarray]  # of one user
Part: TypeAlias = Literal["train", "eval", "test", "adapt", "scored"]  # of a user's examples


class Evaluation(Protocol):
    """The result of evaluating a model on one part of the data."""

    @property
    def examples(self) -> int: ...

    @property
    def headline(self) -> tuple[str, float]:
        """The metric that is shown first, and its value."""
        ...

    def to_dict(self) -> dict[str, Any]: ...


class Scoring:
    """How a method is evaluated: by labels or token losses, for instance. A method may define its own subclass.

    Example:
        >>> class Hits(Scoring):
        ...     def score(self, data, output):
        ...         return {"hits": (output.argmax(dim=1) == data["label"]).sum().numpy()}
        ...     def summarize(self, counts):
        ...         return sum(int(one["hits"]) for one in counts)
        >>> data, output = {"label": torch.tensor([0, 1])}, torch.tensor([[2.0, 1.0], [3.0, 1.0]])
        >>> Hits().summarize([Hits().score(data, output)])
        1
    """

    # Numbers of examples that users adapt to, unless the run's settings say otherwise; None: all
    k_shot: ClassVar[tuple[int | None, ...]] = (0, 1, 5, 20, None)
    # The part that final evaluations score. scored: half of the test part; participants adapt to the other half
    scored_part: ClassVar[Part] = "test"
    offers: ClassVar[frozenset[str]] = frozenset()  # operations for a user: "predict", "generate", "reply"
    # Whether results record which users an evaluation scored, so that methods are compared and seeds pooled by user
    by_user: ClassVar[bool] = False
    # How reports show the headline metric: as a share in percent, and which direction is better
    percent: ClassVar[bool] = True
    lower_is_better: ClassVar[bool] = False

    def score(self, data: Mapping[str, Tensor], output: Tensor) -> Counts:
        """Compute one user's counts from the examples and the model's output for them."""
        raise NotImplementedError

    def summarize(self, counts: Sequence[Counts]) -> Any:
        """Combine the counts of these users into an `Evaluation`."""
        raise NotImplementedError

    def require(self, corpus: str, *, method: str) -> None:
        """Raise if a corpus lacks what is scored."""
