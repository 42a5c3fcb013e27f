"""Evaluation of next-word suggestions, user by user: how often the word that follows is one of three suggested ones.

EMR3 (equation 1 of OOV Expansion) pools the words of all users: hits / words. A word is suggested if its score is one
of the three largest; of equal scores, the word with the lower number is first. A word that the model does not have,
neither in its vocabulary nor in the user's lexicon, counts as a miss. KEMR3 counts words of the vocabulary only.

All scores are ratios of counts that add up over users, texts and runs (SHARES).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, arange

from homespun.core.scoring import Counts, Scoring
from homespun.evaluation import metrics
from homespun.models.vocabulary import PADDING, SPECIAL

SUGGESTED = 3  # words suggested at once
DIVERGED = 100.0  # mean loss per word that no model in use has; of 10^6 equally likely words it is 14
# Of each user: words to predict, and those that are suggested; the same of words outside the vocabulary; how many of
# those are in the user's lexicon; and keystrokes, a space after each word included, and how many of them suggestions
# save: a tap takes a word with its space
COUNTS = ("words", "hits", "oov", "oov_hits", "covered", "keys", "saved_keys")


class Share(NamedTuple):
    """A ratio of counts. Each side is the first of its counts minus the others."""

    part: tuple[str, ...]
    whole: tuple[str, ...]


SHARES = {
    "emr3": Share(("hits",), ("words",)),
    "kemr3": Share(("hits", "oov_hits"), ("words", "oov")),
    "oov_accuracy": Share(("oov_hits",), ("oov",)),
    "oov_rate": Share(("oov",), ("words",)),
    "oov_rate_left": Share(("oov", "covered"), ("words",)),
    "keystrokes_saved": Share(("saved_keys",), ("keys",)),
}


@dataclass(frozen=True)
class NextWordEvaluation:
    """Counts of every user that was scored, by name of the count. A user may have no words."""

    user_counts: Mapping[str, tuple[int, ...]]
    loss_sum: float  # over all words

    @property
    def users(self) -> int:
        """The number of users with words."""
        return sum(words > 0 for words in self.user_counts["words"])

    @property
    def examples(self) -> int:
        """The number of words to predict."""
        return int(self._sum("words"))

    @property
    def loss(self) -> float:
        return _ratio(self.loss_sum, self._sum("words"))

    @property
    def emr3(self) -> float:
        return self._share("emr3")

    @property
    def kemr3(self) -> float:
        return self._share("kemr3")

    @property
    def oov_accuracy(self) -> float:
        """The share of the words outside the vocabulary that are suggested."""
        return self._share("oov_accuracy")

    @property
    def oov_rate(self) -> float:
        """The share of words that the model does not have, before lexicons."""
        return self._share("oov_rate")

    @property
    def oov_rate_left(self) -> float:
        """The same with lexicons."""
        return self._share("oov_rate_left")

    @property
    def keystrokes_saved(self) -> float:
        """The share of keystrokes that suggestions save, if every word is taken as soon as it is suggested."""
        return self._share("keystrokes_saved")

    @property
    def headline(self) -> tuple[str, float]:
        return "EMR3", self.emr3

    def to_dict(self) -> dict[str, Any]:
        counted = zip(self.user_counts["hits"], self.user_counts["words"], strict=True)
        values = [hits / words for hits, words in counted if words]
        return {
            "metric": "EMR3",
            "value": self.emr3,
            "loss": self.loss,
            **{name: self._share(name) for name in SHARES if name != "emr3"},
            "users": self.users,
            "examples": self.examples,
            "user_mean": float(np.mean(values)) if values else float("nan"),
            "user_worst_tenth": metrics.worst_tenth(values),
            "user_values": values,
            "user_counts": {name: list(one) for name, one in self.user_counts.items()},
        }

    @classmethod
    def merge(cls, evaluations: Sequence[Mapping[str, Any]]) -> NextWordEvaluation:
        """One evaluation of the users of several, from their dicts. A loss of None is undefined."""
        counts = {name: [count for one in evaluations for count in one["user_counts"][name]] for name in COUNTS}
        losses = [float("nan") if one["loss"] is None else one["loss"] for one in evaluations]
        sums = [loss * one["examples"] for loss, one in zip(losses, evaluations, strict=True) if one["examples"]]
        return cls({name: tuple(one) for name, one in counts.items()}, loss_sum=sum(sums))

    def _share(self, name: str) -> float:
        part, whole = (self._sum(first) - sum(map(self._sum, others)) for first, *others in SHARES[name])
        return _ratio(part, whole)

    def _sum(self, name: str) -> int:
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

    k_shot = (0, None)  # each number is one more search at home
    offers = frozenset({"suggest"})
    by_user = True

    def score(self, data: Mapping[str, Tensor], output: Tensor) -> Counts:
        return {**count_hits(data, output), **count_keys(data, output)}

    def summarize(self, counts: Sequence[Counts]) -> NextWordEvaluation:
        found = {name: tuple(int(one[name]) for one in counts) for name in COUNTS}
        return NextWordEvaluation(found, loss_sum=sum(float(one["loss"]) for one in counts))


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
    return {"keys": np.array(keys), "saved_keys": np.array(int(output[..., 2][real].double().sum()))}


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
