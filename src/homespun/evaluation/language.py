"""Evaluation of language models, user by user: perplexity over the tokens after the first three of an utterance.

Perplexity is exp(sum of losses / number of tokens) over the tokens of all users. As in the FedPerC paper, the first
three tokens of an utterance are a given prompt. The perplexity of each user is reported too.

A reply is scored whole, and its tokens are words (core/words.py) and its end, whatever tokens its model writes: then
perplexities of different models are in the same unit. That per token of the model, a subword, is reported too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from torch import Tensor

from homespun.core import seeds
from homespun.core.scoring import Counts, Scoring
from homespun.evaluation import metrics
from homespun.evaluation.intervals import RESAMPLES, expanded_percentiles
from homespun.models.token_batches import PROMPT

ReplyDecoding: TypeAlias = Literal["beam", "greedy", "sample"]


@dataclass(frozen=True)
class TextEvaluation:
    """Losses of a model on one part of the data."""

    examples: int
    user_loss: tuple[float, ...]  # sum of losses per user
    user_tokens: tuple[int, ...]  # number of scored tokens per user
    subwords: int | None = None  # number of scored subwords, if tokens are words and the model writes subwords

    @property
    def users(self) -> int:
        return len(self.user_tokens)

    @property
    def tokens(self) -> int:
        return sum(self.user_tokens)

    @property
    def loss(self) -> float:
        """Mean loss per token."""
        return sum(self.user_loss) / self.tokens if self.tokens else float("nan")

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.loss))

    @property
    def subword_perplexity(self) -> float | None:
        """Perplexity per subword; None if it is not known."""
        return float(np.exp(sum(self.user_loss) / self.subwords)) if self.subwords else None

    @property
    def user_perplexity(self) -> tuple[float, ...]:
        return tuple(float(np.exp(one / tokens)) for one, tokens in zip(self.user_loss, self.user_tokens, strict=True))

    @property
    def headline(self) -> tuple[str, float]:
        return "perplexity", self.perplexity

    def to_dict(self) -> dict[str, Any]:
        no_users = not self.users
        return {
            "metric": "perplexity",
            "value": self.perplexity,
            "loss": self.loss,
            "users": self.users,
            "examples": self.examples,
            "tokens": self.tokens,
            "user_mean": float("nan") if no_users else float(np.mean(self.user_perplexity)),
            "user_worst_tenth": float("nan")
            if no_users
            else metrics.worst_tenth(self.user_perplexity, higher_is_better=False),
            "user_values": list(self.user_perplexity),
            "user_loss": list(self.user_loss),
            "user_tokens": list(self.user_tokens),
            **({"subwords": self.subwords, "subword_perplexity": self.subword_perplexity} if self.subwords else {}),
        }

    @classmethod
    def merge(cls, evaluations: Sequence[Mapping[str, Any]]) -> TextEvaluation:
        """One evaluation of the users of several, from their dicts. A loss of None is undefined."""
        losses = (loss for one in evaluations for loss in one["user_loss"])
        return cls(
            examples=sum(one["examples"] for one in evaluations),
            user_loss=tuple(float("nan") if loss is None else loss for loss in losses),
            user_tokens=tuple(tokens for one in evaluations for tokens in one["user_tokens"]),
            subwords=sum(one.get("subwords") or 0 for one in evaluations) or None,
        )


def summarize(losses: Sequence[np.ndarray], lengths: Sequence[np.ndarray], *, given: int = PROMPT) -> TextEvaluation:
    """The evaluation of every user's token losses [utterances, tokens], without the first `given` tokens. Users without
    utterances do not count."""
    user_loss, user_tokens, examples = [], [], 0
    for loss, length in zip(losses, lengths, strict=True):
        if not len(length):
            continue
        scored = (np.arange(loss.shape[1]) >= given) & (np.arange(loss.shape[1]) < length[:, None])
        user_loss.append(float(loss.astype(np.float64)[scored].sum()))
        user_tokens.append(int(scored.sum()))
        examples += len(length)
    return TextEvaluation(examples, tuple(user_loss), tuple(user_tokens))


@dataclass(frozen=True)
class TokenScoring(Scoring):
    """Scores every token after the first three of an utterance by its loss. Half of the test part is reserved for
    adaptation.

    Example:
        >>> scoring = TokenScoring()
        >>> data, losses = {"length": torch.tensor([4])}, torch.zeros(1, 4)
        >>> scoring.summarize([scoring.score(data, losses)]).headline
        ('perplexity', 1.0)
    """

    given: ClassVar[int] = PROMPT  # first tokens of a text that are not scored
    k_shot = (0, 1, 5, 15, None)
    scored_part = "scored"
    offers = frozenset({"generate"})
    by_user = True
    percent = False
    lower_is_better = True

    def score(self, data: Mapping[str, Tensor], output: Tensor) -> Counts:
        one = summarize([output.numpy()], [data["length"].numpy()], given=self.given)
        return {
            "examples": np.array(one.examples),
            "loss": np.array(sum(one.user_loss)),
            "tokens": np.array(one.tokens),
        }

    def summarize(self, counts: Sequence[Counts]) -> TextEvaluation:
        some = [one for one in counts if one["examples"]]
        return TextEvaluation(
            examples=sum(int(one["examples"]) for one in some),
            user_loss=tuple(float(one["loss"]) for one in some),
            user_tokens=tuple(int(one["tokens"]) for one in some),
            subwords=sum(int(one.get("subwords", 0)) for one in some) or None,
        )


@dataclass(frozen=True)
class ReplyScoring(TokenScoring):
    """Scores every word of a reply, and its end, by its loss given the prompt.

    Example:
        >>> scoring = ReplyScoring()
        >>> scoring.summarize([scoring.score({"length": torch.tensor([2])}, torch.zeros(1, 3))]).tokens
        2
    """

    replies: int = 200  # test prompts whose generated replies are scored after training
    beam: int = 20  # of the search for them, with decode = "beam"
    decode: ReplyDecoding = "beam"
    inverse: str = ""  # folder of the inverse model of a reranker, which is tuned after training; empty: none
    strength: float = 1.0  # of personas in one more set of sampled replies; 1: no such set
    sampled: int = 0  # test prompts whose sampled replies are scored; 0: as many

    given = 0
    k_shot = (0, 1, 5, 20, None)
    offers = frozenset({"reply"})


@dataclass(frozen=True)
class SubwordReplyScoring(ReplyScoring):
    """The same for a model that writes subwords. The column `words` is the number of words of a reply, its end
    included; the losses of their subwords add up to those of words.

    Example:
        >>> scoring = SubwordReplyScoring()
        >>> data = {"length": torch.tensor([4]), "words": torch.tensor([2])}
        >>> found = scoring.summarize([scoring.score(data, torch.zeros(1, 4))])
        >>> found.tokens, found.subwords
        (2, 4)
    """

    k_shot = TokenScoring.k_shot

    def score(self, data: Mapping[str, Tensor], output: Tensor) -> Counts:
        found = super().score(data, output)
        return {**found, "tokens": data["words"].sum().numpy(), "subwords": found["tokens"]}


@dataclass(frozen=True)
class Difference:
    """The difference in perplexity in percent, with a 95 % interval over users if there are enough of them."""

    percent: float
    low: float | None
    high: float | None


def compare(ours: TextEvaluation, theirs: TextEvaluation, *, seed: int = 0) -> Difference:
    """Compare perplexities by a paired bootstrap over users; see `homespun.evaluation.intervals`."""
    if ours.user_tokens != theirs.user_tokens:
        raise ValueError("the two sides were not scored on the same tokens")
    draws = seeds.numpy_generator(seed, "bootstrap").integers(0, ours.users, size=(RESAMPLES, ours.users))
    tokens = np.asarray(ours.user_tokens, dtype=np.float64)
    gap = np.asarray(ours.user_loss) - np.asarray(theirs.user_loss)
    ratios = 100 * (np.exp(gap[draws].sum(1) / tokens[draws].sum(1)) - 1)
    percent = 100 * float(np.exp(gap.sum() / tokens.sum()) - 1)
    return Difference(percent, *expanded_percentiles(ratios, units=ours.users))
