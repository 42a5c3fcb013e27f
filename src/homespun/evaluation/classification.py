"""Evaluation of classification, user by user, and simple controls.

Accuracy is over all examples, as in the FURL paper. The mean over users and the mean over the worst tenth of users are
reported too, because a mean over examples hides the users that a model fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any, Literal

import numpy as np
from torch import Tensor

from homespun.core.errors import MessageError, SettingsError
from homespun.core.scoring import Counts, Scoring
from homespun.data.federation import Examples
from homespun.data.splits import Split
from homespun.evaluation import metrics


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model on one part of the data."""

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
    # Macro-F1 of every sub-population by index, over all test examples of its members; empty if unknown
    group_f1: Mapping[int, float] = field(default_factory=dict)
    metric: str | None = None  # the paper's; None: AUC for two classes, accuracy otherwise

    @property
    def f1(self) -> float | None:
        """The mean over sub-populations, each with equal weight."""
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


@dataclass(frozen=True)
class LabelScoring(Scoring):
    """Scores logits against labels: accuracy, loss, AUC for two labels, macro-F1 if sub-populations are known.

    Example:
        >>> scoring = LabelScoring(classes=3)
        >>> data, output = {"label": torch.tensor([0, 1])}, torch.tensor([[2.0, 1.0, 0.0], [3.0, 1.0, 0.0]])
        >>> scoring.summarize([scoring.score(data, output)]).headline
        ('accuracy', 0.5)
    """

    classes: int
    metric: Literal["accuracy", "auc", "f1"] | None = None  # the headline; None: AUC for two labels, else accuracy

    offers = frozenset({"predict"})

    def require(self, corpus: str, *, method: str) -> None:
        if self.classes < 2:
            raise SettingsError(
                f"{corpus}: {method} needs a label with at least two values. "
                "Name its column with --label-column, or for sotu set --data-set label=context."
            )

    def score(self, data: Mapping[str, Tensor], output: Tensor) -> Counts:
        logits = output.numpy()
        if not np.isfinite(logits).all():
            raise MessageError(
                "predictions are NaN or infinite. Lower the learning rate of the clients or of the server."
            )
        groups = data["group"].numpy()[:1] if "group" in data else np.empty(0, dtype=np.int64)
        return self.counts(
            data["label"].numpy(), logits[:, : self.classes], groups=groups
        )  # other columns are not logits

    def counts(self, labels: np.ndarray, logits: np.ndarray, *, groups: np.ndarray) -> Counts:
        predicted, classes = logits.argmax(axis=1), np.arange(self.classes)
        right, said = labels[:, None] == classes, predicted[:, None] == classes
        found = {
            "examples": np.array(len(labels)),
            "correct": np.array(int((predicted == labels).sum())),
            "loss": np.array(metrics.cross_entropy(labels, logits).astype(np.float64).sum()),
            "true_positives": (right & said).sum(axis=0),
            "confused": (right != said).sum(axis=0),
            "group": groups,
        }
        return {**found, **(_histogram(labels, logits) if self.classes == 2 else {})}

    def summarize(self, counts: Sequence[Counts]) -> Evaluation:
        some = [one for one in counts if one["examples"]]
        if not some:
            return Evaluation(0, 0, nan, nan, None if self.classes > 2 else nan, nan, nan, nan, nan, ())
        examples, correct, losses = (np.array([float(one[n]) for one in some]) for n in ("examples", "correct", "loss"))
        user_accuracy, user_loss = (correct / examples).tolist(), (losses / examples).tolist()
        return Evaluation(
            users=len(some),
            examples=int(examples.sum()),
            accuracy=float(correct.sum() / examples.sum()),
            loss=float(losses.sum() / examples.sum()),
            auc=_auc(some) if self.classes == 2 else None,
            user_accuracy_mean=float(np.mean(user_accuracy)),
            user_accuracy_worst_tenth=metrics.worst_tenth(user_accuracy),
            user_loss_mean=float(np.mean(user_loss)),
            user_loss_worst_tenth=metrics.worst_tenth(user_loss, higher_is_better=False),
            user_accuracy=tuple(user_accuracy),
            group_f1=_group_f1(some),
            metric=self.metric,
        )


def _histogram(labels: np.ndarray, logits: np.ndarray) -> Counts:
    """Counts of positive and negative examples per score. An exact AUC ranks the examples of all users together and
    needs all of these counts."""
    scores, place = np.unique(logits[:, 1] - logits[:, 0], return_inverse=True)
    positives, negatives = (np.bincount(place[labels == one], minlength=len(scores)) for one in (1, 0))
    return {"scores": scores, "positives": positives, "negatives": negatives}


def _auc(counts: Sequence[Counts]) -> float:
    scores, positives, negatives = (
        np.concatenate([one[name] for one in counts]) for name in ("scores", "positives", "negatives")
    )
    ranked = np.concatenate([np.repeat(scores, positives), np.repeat(scores, negatives)])
    labels = np.arange(len(ranked)) < positives.sum()
    return metrics.auc(labels, ranked)


def _group_f1(counts: Sequence[Counts]) -> dict[int, float]:
    groups = sorted({int(one["group"][0]) for one in counts if len(one["group"])})
    members = {group: [one for one in counts if len(one["group"]) and one["group"][0] == group] for group in groups}
    return {
        group: metrics.macro_f1(
            np.sum([one["true_positives"] for one in some], axis=0), np.sum([one["confused"] for one in some], axis=0)
        )
        for group, some in members.items()
    }


def summarize(
    labels: Sequence[np.ndarray],
    logits: Sequence[np.ndarray],
    *,
    classes: int,
    groups: Sequence[int] | None = None,
    metric: Literal["accuracy", "auc", "f1"] | None = None,
) -> Evaluation:
    """The evaluation of every user's labels and logits. `groups` are the users' sub-populations, if known.

    Users without examples do not count.
    """
    scoring = LabelScoring(classes, metric)
    known: Sequence[Sequence[int]] = [()] * len(labels) if groups is None else [(group,) for group in groups]
    return scoring.summarize(
        [
            scoring.counts(one, other, groups=np.array(group, dtype=np.int64))
            for one, other, group in zip(labels, logits, known, strict=True)
        ]
    )


def controls(splits: Sequence[Split], tested: Sequence[Examples], scoring: LabelScoring) -> dict[str, Evaluation]:
    """Controls that ignore the input: label frequencies over the training parts of all users (`majority`), and over the
    user's own (`own_majority`).

    Scores are log frequencies with add-one smoothing, so that controls also have an AUC and a loss.
    """
    classes, metric = scoring.classes, scoring.metric
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
