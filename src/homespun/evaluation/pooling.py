"""Combines evaluations of several runs: the folds of a seed, and each user's losses over seeds.

An evaluation here is its dict in `results.json`, where undefined values are None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from homespun.core.scoring import Evaluation
from homespun.evaluation import metrics
from homespun.evaluation.language import TextEvaluation
from homespun.evaluation.next_words import NextWordEvaluation

# Evaluations with sums of each user merge exactly, by metric.
MERGE: Mapping[str, Callable[[Sequence[Mapping[str, Any]]], Evaluation]] = {
    "perplexity": TextEvaluation.merge,
    "EMR3": NextWordEvaluation.merge,
}
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
    if evaluations[0]["metric"] in MERGE:
        return MERGE[evaluations[0]["metric"]](evaluations).to_dict()
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


def _mean(values: Sequence[float | None], weights: Sequence[int] | None = None) -> float:
    if not values or (weights is not None and not sum(weights)):
        return float("nan")
    kept = [place for place in range(len(values)) if weights is None or weights[place]]
    numbers = np.asarray([values[place] for place in kept], dtype=float)
    return float(np.average(numbers, weights=None if weights is None else [weights[place] for place in kept]))


def sum_by_user(
    evaluations: Sequence[Mapping[str, Sequence[float]]], positions: Sequence[Sequence[int] | None]
) -> dict[str, list[float]]:
    """Columns with a value for each user, summed over all runs that scored the user.

    `positions` has the positions of each evaluation's users, or None if unknown, in which case all count as different
    users. The bootstrap draws users, and a user in three seeds is still one user.
    """
    total: dict[tuple[int, int], list[float]] = {}
    for run, (columns, users) in enumerate(zip(evaluations, positions, strict=True)):
        rows = list(zip(*columns.values(), strict=True))
        names = [(run, place) for place in range(len(rows))] if users is None else [(-1, user) for user in users]
        for who, row in zip(names, rows, strict=True):
            total[who] = [before + more for before, more in zip(total.get(who, [0] * len(row)), row, strict=True)]
    return {name: [total[who][place] for who in sorted(total)] for place, name in enumerate(evaluations[0])}


def sum_losses_by_user(
    evaluations: Sequence[Mapping[str, Any]], positions: Sequence[Sequence[int] | None]
) -> TextEvaluation:
    """Every user's losses and tokens, summed over all runs that scored them."""
    each = [TextEvaluation.merge([one]) for one in evaluations]
    found = sum_by_user([{"loss": one.user_loss, "tokens": one.user_tokens} for one in each], positions)
    return TextEvaluation(
        examples=sum(one.examples for one in each),
        user_loss=tuple(found["loss"]),
        user_tokens=tuple(map(int, found["tokens"])),
    )
