"""Losses by conversation: perplexity, pooled over seeds, and differences with intervals over conversations.

Losses are columns: `conversation` (its number in the corpus), `loss` (the sum over its words) and `words`. Each seed
splits the corpus differently, so a conversation may be tested by several. Pooled, it is one unit of the bootstrap with
all its words of all seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from homespun.evaluation.intervals import Estimate, estimate, resampled_sums

Losses: TypeAlias = Mapping[str, Sequence[float]]


def sum_by_conversation(rows: Iterable[tuple[int, float, float]]) -> dict[str, list[float]]:
    """Losses from rows (conversation, loss, words), in the order of the conversations.

    Example:
        >>> sum_by_conversation([(7, 1.0, 2), (3, 0.5, 1), (7, 2.0, 4)])
        {'conversation': [3, 7], 'loss': [0.5, 3.0], 'words': [1, 6]}
    """
    total: dict[int, tuple[float, float]] = {}
    for conversation, loss, words in rows:
        before = total.get(conversation, (0.0, 0))
        total[conversation] = (before[0] + loss, before[1] + words)
    order = sorted(total)
    return {
        "conversation": list(order),
        "loss": [total[one][0] for one in order],
        "words": [total[one][1] for one in order],
    }


def pool_losses(runs: Sequence[Losses]) -> Losses:
    """The losses of several runs of one configuration together."""
    return sum_by_conversation(
        (int(conversation), loss, words)
        for run in runs
        for conversation, loss, words in zip(run["conversation"], run["loss"], run["words"], strict=True)
    )


def perplexity(losses: Losses) -> float:
    return float(np.exp(sum(losses["loss"]) / sum(losses["words"])))


def estimate_perplexity(losses: Losses) -> Estimate:
    """Perplexity, by a bootstrap over conversations.

    Example:
        >>> estimate_perplexity({"conversation": [3, 7], "loss": [0.0, 0.0], "words": [1, 6]}).value
        1.0
    """
    columns = np.stack([np.asarray(losses[name], dtype=np.float64) for name in ("loss", "words")], axis=1)
    total = resampled_sums(columns, seed=0)
    return estimate(perplexity(losses), np.exp(total[:, 0] / total[:, 1]), units=len(columns))


def compare_losses(ours: Losses, theirs: Losses) -> Estimate:
    """The difference in perplexity in percent, by a paired bootstrap over conversations."""
    if any(list(ours[name]) != list(theirs[name]) for name in ("conversation", "words")):
        raise ValueError("the two sides were not scored on the same conversations")
    gap = np.subtract(ours["loss"], theirs["loss"])
    total = resampled_sums(np.stack([gap, np.asarray(ours["words"], dtype=np.float64)], axis=1), seed=0)
    value = 100 * float(np.expm1(gap.sum() / sum(ours["words"])))
    return estimate(value, 100 * np.expm1(total[:, 0] / total[:, 1]), units=len(gap))
