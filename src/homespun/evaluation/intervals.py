"""Bootstrap intervals: 95 %, over whole users or conversations.

Sentences of one conversation are not independent, so the bootstrap draws conversations with all their sentences. The
interval covers the variation between samples of conversations, not between training runs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, stdtrit

from homespun.core import seeds

RESAMPLES = 10_000
FEWEST = 5  # units (users or conversations) needed for an interval
ENTRIES = 2**22  # draws held at once


@dataclass(frozen=True)
class Estimate:
    """A value, with a 95 % interval if there are enough units."""

    value: float
    low: float | None
    high: float | None


def expanded_percentiles(resampled: np.ndarray, *, units: int) -> tuple[float | None, float | None]:
    """The 95 % interval of a statistic from its values in resamples of `units` units.

    A bootstrap of few units underestimates their variation, so the quantiles are widened by the ratio of Student's t to
    the normal distribution (Hesterberg, 2015, expanded percentiles). Below FEWEST units there is no interval.
    """
    if units < FEWEST:
        return None, None
    tail = ndtr(np.sqrt(units / (units - 1)) * stdtrit(units - 1, 0.025))
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return float(low), float(high)


def estimate(value: float, resampled: np.ndarray, *, units: int) -> Estimate:
    """A value with the interval of its resamples."""
    return Estimate(float(value), *expanded_percentiles(resampled, units=units))


def cluster_numbers(clusters: Sequence[Hashable]) -> np.ndarray:
    """Clusters as numbers from 0, in the order of their first occurrence."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(one, len(numbers)) for one in clusters], dtype=np.int64)


def resampled_sums(sums: np.ndarray, *, seed: int) -> np.ndarray:
    """Sums [RESAMPLES, columns] over units that are drawn with replacement from `sums` [units, columns].

    The draws depend on the seed and the number of units alone: two systems that are scored on the same units are
    compared on the same draws.
    """
    units = len(sums)
    draw = seeds.numpy_generator(seed, "bootstrap")
    block = max(1, ENTRIES // units)
    total = np.empty((RESAMPLES, sums.shape[1]))
    for begin in range(0, RESAMPLES, block):
        size = min(block, RESAMPLES - begin)
        drawn = draw.integers(0, units, size=(size, units)) + units * np.arange(size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=size * units).reshape(size, units)
        total[begin : begin + size] = times.astype(np.float64) @ sums
    return total
