"""Hypotheses of a search: unfinished, finished, and the words of those that are returned.

A unit is a set of hypotheses that compete with each other: those of a question, or of one group of its beams.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from homespun.decoding.protocol import State
from homespun.decoding.selection import Extensions, best_of_each


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished sequence, without `begin` and `end`."""

    tokens: tuple[int, ...]
    log_prob: float
    """The log probability of the words and of `end`."""


@dataclass(frozen=True)
class Live:
    """The unfinished hypotheses of a batch, by unit and then from best to worst."""

    unit: np.ndarray  # int64 [rows], ascending
    score: np.ndarray  # float64 [rows]
    tokens: np.ndarray  # int64 [rows], the last word of each
    state: State


@dataclass(frozen=True)
class Finished:
    """The best finished hypotheses so far, by unit and then from best to worst."""

    unit: np.ndarray  # int64
    score: np.ndarray  # float64
    length: np.ndarray  # int64: number of words
    row: np.ndarray  # int64: row among the hypotheses of this length

    def add(self, live: Live, score: np.ndarray, *, length: int, n_best: int) -> Finished:
        """With the hypotheses that end after this number of words; of each unit, the best remain."""
        some = np.flatnonzero(score > -np.inf)
        unit = np.concatenate((self.unit, live.unit[some]))
        scores = np.concatenate((self.score, score[some]))
        best = best_of_each(unit, (-scores,), n_best)  # stable: in a tie, the shorter one is first
        lengths = np.concatenate((self.length, np.full(len(some), length)))
        return Finished(unit[best], scores[best], lengths[best], np.concatenate((self.row, some))[best])

    def floor(self, *, units: int, n_best: int) -> np.ndarray:
        """The score that a hypothesis must exceed to enter the list [units]; -inf while the list is not full."""
        counts = np.bincount(self.unit, minlength=units)
        found = np.full(units, -np.inf)
        full = counts >= n_best
        found[full] = self.score[np.cumsum(counts)[full] - 1]
        return found


NONE_FINISHED = Finished(*(np.zeros(0, dtype) for dtype in (np.int64, np.float64, np.int64, np.int64)))


def read_hypotheses(finished: Finished, history: list[Extensions], *, units: int) -> list[list[Hypothesis]]:
    """The words of finished hypotheses, read backwards from their last word; one list per unit."""
    words, row = np.zeros((len(finished.row), len(history)), np.int64), finished.row.copy()
    for place in reversed(range(len(history))):
        reaches = np.flatnonzero(finished.length > place)
        words[reaches, place] = history[place].word[row[reaches]]
        row[reaches] = history[place].row[row[reaches]]
    found: list[list[Hypothesis]] = [[] for _ in range(units)]
    columns = (finished.unit, finished.length, finished.score, words)
    for unit, length, score, line in zip(*(column.tolist() for column in columns), strict=True):
        found[unit].append(Hypothesis(tuple(line[:length]), score))
    return found
