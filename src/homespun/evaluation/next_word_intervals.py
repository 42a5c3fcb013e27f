"""Scores of next-word suggestions over all runs of a configuration, with intervals over users, and paired differences.

The bootstrap draws users, each with all words of all runs. Two configurations are compared on the same draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from homespun.evaluation.intervals import Estimate, estimate, resampled_sums
from homespun.evaluation.next_words import COUNTS, SHARES
from homespun.evaluation.pooling import sum_by_user


@dataclass(frozen=True, eq=False)
class PooledCounts:
    """Counts [users, COUNTS] of the users with words over all runs, and their sums [resamples, COUNTS] over users that
    are drawn with replacement."""

    of_users: np.ndarray
    resampled: np.ndarray

    @property
    def users(self) -> int:
        return len(self.of_users)

    @property
    def words(self) -> int:
        return int(self.of_users[:, COUNTS.index("words")].sum())


def sum_counts(evaluations: Sequence[Mapping[str, Any]], positions: Sequence[Sequence[int] | None]) -> np.ndarray:
    """The counts [users, COUNTS] of each user with words over all runs of a configuration; `positions` are those of the
    users of each run."""
    columns = [{name: one["user_counts"][name] for name in COUNTS} for one in evaluations]
    found = np.array(list(sum_by_user(columns, positions).values()), dtype=np.int64).reshape(len(COUNTS), -1).T
    return found[found[:, COUNTS.index("words")] > 0]


def resample(several: Sequence[np.ndarray]) -> list[PooledCounts]:
    """Resample the counts of several systems. Systems with equally many users share their draws, which take longer than
    the sums."""
    found: dict[int, PooledCounts] = {}
    for users in {len(counts) for counts in several}:
        places = [place for place, counts in enumerate(several) if len(counts) == users]
        side_by_side = np.concatenate([several[place] for place in places], axis=1).astype(np.float64)
        sums = resampled_sums(side_by_side, seed=0) if users else side_by_side
        parts = np.split(sums, len(places), axis=1)
        found |= {place: PooledCounts(several[place], part) for place, part in zip(places, parts, strict=True)}
    return [found[place] for place in range(len(several))]


def share(counts: PooledCounts, name: str) -> Estimate | None:
    """One of SHARES; None if it is not defined, as the accuracy on unknown words is without any."""
    part, whole = _sides(counts.of_users.sum(axis=0), name)
    return estimate(part / whole, _defined(_ratios(counts, name)), units=counts.users) if whole else None


def difference(ours: PooledCounts, theirs: PooledCounts, name: str) -> Estimate | None:
    """Ours minus theirs; None if the two were not scored on the same words of the same users."""
    (our_part, whole), (their_part, their_whole) = (_sides(one.of_users.T, name) for one in (ours, theirs))
    if not np.array_equal(whole, their_whole) or not whole.sum():
        return None
    value = (our_part.sum() - their_part.sum()) / whole.sum()
    return estimate(value, _defined(_ratios(ours, name) - _ratios(theirs, name)), units=ours.users)


def _ratios(counts: PooledCounts, name: str) -> np.ndarray:
    part, whole = _sides(counts.resampled.T, name)
    return np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)


def _defined(values: np.ndarray) -> np.ndarray:
    """Without the resamples that have none of the words that are counted."""
    return values[~np.isnan(values)]


def _sides(counts: np.ndarray, name: str) -> tuple[Any, Any]:
    """Part and whole of a share, from counts whose first axis is COUNTS."""
    part, whole = ([counts[COUNTS.index(one)] for one in names] for names in SHARES[name])
    return part[0] - sum(part[1:]), whole[0] - sum(whole[1:])
