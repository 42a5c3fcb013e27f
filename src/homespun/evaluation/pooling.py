"""Combines evaluations of several runs: the folds of a seed, and each user's losses over seeds.

An evaluation here is its dict in `results.json`, where undefined values are None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from homespun.evaluation import metrics
from homespun.evaluation.language import TextEvaluation

COLUMNS = ("value", "user_mean", "user_worst_tenth", "loss")  # columns of an evaluation in a table


def average_evaluations(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over evaluations of mostly the same users: the participants of a seed's folds. For texts, the mean over
    tokens, consistent with differences between configurations."""
    if evaluations[0]["metric"] == "perplexity":
        return dict(merge_evaluations(evaluations))
    return {
        "metric": evaluations[0]["metric"],
        **{column: _mean([one[column] for one in evaluations]) for column in COLUMNS},
    }


def merge_evaluations(evaluations: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """One evaluation over distinct users: the newcomers of a seed's folds, each of whom occurs once."""
    if len(evaluations) == 1:
        return evaluations[0]
    if evaluations[0]["metric"] == "perplexity":
        return TextEvaluation(
            examples=sum(one["examples"] for one in evaluations),
            user_loss=tuple(loss for one in evaluations for loss in _numbers(one["user_loss"])),
            user_tokens=tuple(tokens for one in evaluations for tokens in one["user_tokens"]),
            subwords=sum(one.get("subwords") or 0 for one in evaluations) or None,
        ).to_dict()
    values = [value for one in evaluations for value in one["user_values"]]
    examples = [one["examples"] for one in evaluations]
    return {
        "metric": evaluations[0]["metric"],
        "users": len(values),
        "examples": sum(examples),
        # Exact for accuracy and loss. An AUC over all folds would need every score; this is the folds' mean.
        **{name: _mean([one[name] for one in evaluations], examples) for name in ("value", "loss")},
        "user_mean": _mean(values),
        "user_worst_tenth": metrics.worst_tenth(values),
        "user_values": values,
    }


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _mean(values: Sequence[float | None], weights: Sequence[int] | None = None) -> float:
    if not values or (weights is not None and not sum(weights)):
        return float("nan")
    kept = [place for place in range(len(values)) if weights is None or weights[place]]
    numbers = np.asarray([values[place] for place in kept], dtype=float)
    return float(np.average(numbers, weights=None if weights is None else [weights[place] for place in kept]))


def sum_by_user(evaluations: Sequence[Mapping[str, Any]], positions: Sequence[Sequence[int] | None]) -> TextEvaluation:
    """Every user's losses and tokens, summed over all runs that scored them.

    `positions` has the positions of each evaluation's users, or None if unknown, in which case all count as different
    users. The bootstrap draws users, and a user in three seeds is still one user.
    """
    loss: dict[tuple[int, int], float] = {}
    tokens: dict[tuple[int, int], int] = {}
    for run, (one, users) in enumerate(zip(evaluations, positions, strict=True)):
        names = [(run, place) for place in range(one["users"])] if users is None else [(-1, user) for user in users]
        for who, more_loss, more_tokens in zip(names, _numbers(one["user_loss"]), one["user_tokens"], strict=True):
            loss[who] = loss.get(who, 0.0) + more_loss
            tokens[who] = tokens.get(who, 0) + more_tokens
    order = sorted(loss)
    return TextEvaluation(
        examples=sum(one["examples"] for one in evaluations),
        user_loss=tuple(loss[who] for who in order),
        user_tokens=tuple(tokens[who] for who in order),
    )
