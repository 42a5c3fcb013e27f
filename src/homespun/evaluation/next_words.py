"""Evaluation of next-word suggestions, user by user: how often the word that follows is one of three suggested ones.

EMR3 (equation 1 of OOV Expansion) pools the words of all users: hits / words. A word is suggested if its score is one
of the three largest; of equal scores, the word with the lower number is first. A word that the model does not have,
neither in its vocabulary nor in the user's lexicon, counts as a miss. KEMR3 counts words of the vocabulary only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, arange

from homespun.core.scoring import Counts, Scoring
from homespun.evaluation import metrics
from homespun.models.vocabulary import PADDING, SPECIAL

SUGGESTED = 3  # words suggested at once
DIVERGED = 100.0  # mean loss per word that no model in use has; of 10^6 equally likely words it is 14
# Of each user: words to predict, and those that are suggested; the same of words outside the vocabulary; how many of
# those are in the user's lexicon; the sum of losses; and keystrokes, a space after each word included, and how many of
# them suggestions save: a tap takes a word with its space
COUNTS = ("words", "hits", "oov", "oov_hits", "covered", "loss", "keys", "saved_keys")


@dataclass(frozen=True)
class NextWordEvaluation:
    """Counts of every user with words, by name of the count."""

    user_counts: Mapping[str, tuple[float, ...]]

    @property
    def users(self) -> int:
        return len(self.user_counts["words"])

    @property
    def examples(self) -> int:
        """The number of words to predict."""
        return int(self._sum("words"))

    @property
    def emr3(self) -> float:
        return _ratio(self._sum("hits"), self._sum("words"))

    @property
    def kemr3(self) -> float:
        return _ratio(self._sum("hits") - self._sum("oov_hits"), self._sum("words") - self._sum("oov"))

    @property
    def oov_accuracy(self) -> float:
        """The share of the words outside the vocabulary that are suggested."""
        return _ratio(self._sum("oov_hits"), self._sum("oov"))

    @property
    def oov_rate(self) -> float:
        """The share of words that the model does not have, before lexicons."""
        return _ratio(self._sum("oov"), self._sum("words"))

    @property
    def oov_rate_left(self) -> float:
        """The same with lexicons."""
        return _ratio(self._sum("oov") - self._sum("covered"), self._sum("words"))

    @property
    def keystrokes_saved(self) -> float:
        """The share of keystrokes that suggestions save, if every word is taken as soon as it is suggested."""
        return _ratio(self._sum("saved_keys"), self._sum("keys"))

    @property
    def headline(self) -> tuple[str, float]:
        return "EMR3", self.emr3

    def to_dict(self) -> dict[str, Any]:
        values = [_ratio(*one) for one in zip(self.user_counts["hits"], self.user_counts["words"], strict=True)]
        return {
            "metric": "EMR3",
            "value": self.emr3,
            "loss": _ratio(self._sum("loss"), self._sum("words")),
            "kemr3": self.kemr3,
            "oov_accuracy": self.oov_accuracy,
            "oov_rate": self.oov_rate,
            "oov_rate_left": self.oov_rate_left,
            "keystrokes_saved": self.keystrokes_saved,
            "users": self.users,
            "examples": self.examples,
            "user_mean": float(np.mean(values)) if values else float("nan"),
            "user_worst_tenth": metrics.worst_tenth(values),
            "user_values": values,
            "user_counts": {name: list(one) for name, one in self.user_counts.items()},
        }

    def _sum(self, name: str) -> float:
        return sum(self.user_counts[name])


@dataclass(frozen=True)
class NextWordScoring(Scoring):
    """Example:
    >>> import torch
    >>> data = {"words": torch.tensor([[7, 3]]), "length": torch.tensor([2]), "letters": torch.tensor([[5, 3]])}
    >>> output = torch.tensor([[[0.5, 2.0, 5.0], [0.5, -1.0, 0.0]]])
    >>> scoring = NextWordScoring()
    >>> found = scoring.summarize([scoring.score(data, output)])
    >>> found.headline, found.keystrokes_saved
    (('EMR3', 0.5), 0.5)
    """

    offers = frozenset({"suggest"})

    def score(self, data: Mapping[str, Tensor], output: Tensor) -> Counts:
        return {**count_hits(data, output), **count_keys(data, output)}

    def summarize(self, counts: Sequence[Counts]) -> NextWordEvaluation:
        some = [one for one in counts if one["words"]]
        return NextWordEvaluation({name: tuple(one[name].item() for one in some) for name in COUNTS})


def count_hits(data: Mapping[str, Tensor], output: Tensor) -> Counts:
    """One user's counts, from the loss, the rank and the saved letters of each word [n, T, 3]. The rank of a word that
    neither the vocabulary nor the user's lexicon has is negative."""
    real = _real(data)
    oov = real & (data["words"] < SPECIAL)
    rank = output[..., 1]
    hit = real & (rank >= 0) & (rank < SUGGESTED)
    found = {"words": real, "hits": hit, "oov": oov, "oov_hits": hit & oov, "covered": oov & (rank >= 0)}
    counts = {name: np.array(int(one.sum())) for name, one in found.items()}
    return {**counts, "loss": np.array(float(output[..., 0][real].double().sum()))}


def count_keys(data: Mapping[str, Tensor], output: Tensor) -> Counts:
    """How many keys a user presses without suggestions, and how many of them suggestions save."""
    real = _real(data)
    keys = int(data["letters"][real].long().sum()) + int(real.sum())
    return {"keys": np.array(keys), "saved_keys": np.array(float(output[..., 2][real].double().sum()))}


def _real(data: Mapping[str, Tensor]) -> Tensor:
    return (arange(data["words"].shape[1]) < data["length"][:, None]) & (data["words"] != PADDING)


def emr3_and_loss(data: Mapping[str, Tensor], output: Tensor) -> tuple[float, float]:
    """EMR3 and minus the mean loss of one user's examples: larger is better. The loss of a model that has diverged is
    infinite, also if it always suggests the most frequent words and so hits some."""
    counts = count_hits(data, output)
    words = max(int(counts["words"]), 1)
    loss = float(counts["loss"]) / words
    return int(counts["hits"]) / words, -loss if loss < DIVERGED else -math.inf


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")
