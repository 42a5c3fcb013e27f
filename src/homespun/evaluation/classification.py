"""Classification, user by user: participants, newcomers with a few examples, and controls.

Accuracy is over all examples, as in the FURL paper; the mean over users and the worst tenth of users
stand beside it, because a mean over examples hides whom a model fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from homespun.data.federation import Examples
from homespun.data.splits import Split
from homespun.evaluation import metrics


@dataclass(frozen=True)
class Evaluation:
    """How a model fares on one part of the data."""

    users: int
    examples: int
    accuracy: float
    loss: float
    auc: float | None  # two-class tasks only
    user_accuracy_mean: float
    user_accuracy_worst_tenth: float
    user_loss_mean: float
    user_loss_worst_tenth: float
    user_accuracy: tuple[float, ...]  # one value per user
    # Macro-F1 of every sub-population by number, over all that its members are tested on; where they are known
    group_f1: Mapping[int, float] = field(default_factory=dict)
    metric: str | None = None  # the paper's; None: AUC for two classes, accuracy otherwise

    @property
    def f1(self) -> float | None:
        """The mean over sub-populations, so that a small one counts as much as a large one."""
        return float(np.mean(list(self.group_f1.values()))) if self.group_f1 else None

    @property
    def headline(self) -> tuple[str, float]:
        if self.metric == "f1" and self.f1 is not None:
            return "f1", self.f1
        return ("accuracy", self.accuracy) if self.auc is None or self.metric == "accuracy" else ("auc", self.auc)

    def to_dict(self) -> dict[str, Any]:
        metric, value = self.headline
        return {
            "metric": metric,
            "value": value,
            **{name: getattr(self, name) for name in ("users", "examples", "accuracy", "loss", "auc")},
            "user_mean": self.user_accuracy_mean,
            "user_worst_tenth": self.user_accuracy_worst_tenth,
            "user_values": list(self.user_accuracy),
            "user_loss_mean": self.user_loss_mean,
            "user_loss_worst_tenth": self.user_loss_worst_tenth,
            **(
                {"f1": self.f1, "group_f1": {str(group): value for group, value in self.group_f1.items()}}
                if self.group_f1
                else {}
            ),
        }


def summarize(
    labels: Sequence[np.ndarray],
    logits: Sequence[np.ndarray],
    *,
    classes: int,
    groups: Sequence[int] | None = None,
    metric: str | None = None,
) -> Evaluation:
    """From every user's labels and logits and, where they are known, sub-populations; users without examples do not
    count."""
    pairs = [(one, other) for one, other in zip(labels, logits, strict=True) if len(one)]
    if not pairs:
        nan = float("nan")
        return Evaluation(0, 0, nan, nan, None if classes > 2 else nan, nan, nan, nan, nan, ())
    every_label = np.concatenate([one for one, _ in pairs])
    every_logit = np.concatenate([other for _, other in pairs])
    user_accuracy = [metrics.accuracy(one, other) for one, other in pairs]
    user_loss = [float(metrics.cross_entropy(one, other).mean()) for one, other in pairs]
    return Evaluation(
        users=len(pairs),
        examples=len(every_label),
        accuracy=metrics.accuracy(every_label, every_logit),
        loss=float(metrics.cross_entropy(every_label, every_logit).mean()),
        auc=metrics.auc(every_label, every_logit) if classes == 2 else None,
        user_accuracy_mean=float(np.mean(user_accuracy)),
        user_accuracy_worst_tenth=metrics.worst_tenth(user_accuracy),
        user_loss_mean=float(np.mean(user_loss)),
        user_loss_worst_tenth=metrics.worst_tenth(user_loss, higher_is_better=False),
        user_accuracy=tuple(user_accuracy),
        group_f1={} if groups is None else _group_f1(labels, logits, groups=groups, classes=classes),
        metric=metric,
    )


def _group_f1(
    labels: Sequence[np.ndarray], logits: Sequence[np.ndarray], *, groups: Sequence[int], classes: int
) -> dict[int, float]:
    found = {}
    for group in sorted(set(groups)):
        members = [place for place, other in enumerate(groups) if other == group and len(labels[place])]
        if members:
            predicted = np.concatenate([logits[place].argmax(axis=1) for place in members])
            truth = np.concatenate([labels[place] for place in members])
            found[group] = metrics.macro_f1(truth, predicted, classes=classes)
    return found


def controls(
    splits: Sequence[Split], tested: Sequence[Examples], *, classes: int, metric: str | None = None
) -> dict[str, Evaluation]:
    """What can be had without reading the text: the label's frequency over everybody's training part
    (`majority`), and over the user's own (`own_majority`).

    Scores are log frequencies (add-one smoothed), so that they also have an AUC and a loss.
    """
    counts = [np.bincount(np.asarray(split.train.labels), minlength=classes) for split in splits]
    overall = np.log(np.sum(counts, axis=0) + 1.0)
    labels = [np.asarray(examples.labels) for examples in tested]

    def constant(row: np.ndarray, examples: Examples) -> np.ndarray:
        return np.repeat((row - np.log(np.exp(row).sum()))[None], len(examples), axis=0)

    known = [examples.groups for examples in tested]
    groups = [int(column[0]) if column is not None and len(column) else -1 for column in known]

    def of(logits: Sequence[np.ndarray]) -> Evaluation:
        return summarize(labels, logits, classes=classes, groups=groups if metric == "f1" else None, metric=metric)

    own = [constant(np.log(count + 1.0), examples) for count, examples in zip(counts, tested, strict=True)]
    return {
        "majority": of([constant(overall, examples) for examples in tested]),
        "own_majority": of(own),
    }
