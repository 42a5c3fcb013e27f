"""Selects the best extensions among all words of all hypotheses, exactly, without sorting all of them.

The words of a row are divided into residue classes: the words k, k + n, k + 2n, ... form class k of n. If n is about
the square root of the number of words, the maxima of all classes take one cheap pass. The `count`-th largest maximum is
a lower bound of the `count`-th best extension, so that only classes whose maximum reaches it are searched, about
`count` of them.

A score is the float64 sum of float32 log probabilities. Rounding keeps the order of the words of one row, so that a
class's maximum bounds its words exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

CLASSES = 256


@dataclass(frozen=True)
class Extensions:
    """Hypotheses, each extended by one word."""

    row: np.ndarray  # int64: row of the hypothesis that is extended
    word: np.ndarray  # int64
    score: np.ndarray  # float64: log probability of the hypothesis with the word

    def take(self, places: np.ndarray) -> Extensions:
        return Extensions(self.row[places], self.word[places], self.score[places])


def join_extensions(parts: Iterable[Extensions]) -> Extensions:
    """The extensions of several blocks or groups, one after the other."""
    rows, words, scores = zip(*((part.row, part.word, part.score) for part in parts), strict=True)
    return Extensions(np.concatenate(rows), np.concatenate(words), np.concatenate(scores))


def find_extensions(
    log_probs: Tensor, scores: Tensor, *, unit: Tensor, floor: Tensor, count: int, classes: int = CLASSES
) -> Extensions:
    """At least the `count` best extensions of each unit whose score exceeds the unit's floor, in no order.

    A unit is a set of hypotheses that compete with each other, for instance those of one question.

    log_probs: float32 [rows, vocabulary]; -inf for words that are not allowed
    scores: float64 [rows], the hypotheses' log probabilities
    unit: int64 [rows], ascending from 0
    floor: float64 [units]
    """
    vocabulary = log_probs.shape[1]
    maxima = _class_maxima(log_probs, min(classes, vocabulary)).double() + scores[:, None]
    least = _kth_largest(maxima, unit, count)[unit]
    floor_of_row = floor[unit]
    row, residue = ((maxima >= least[:, None]) & (maxima > floor_of_row[:, None])).nonzero(as_tuple=True)
    step = maxima.shape[1]
    words = residue[:, None] + torch.arange(0, vocabulary, step, device=unit.device)
    inside = words < vocabulary
    found = log_probs[row[:, None], words.clamp(max=vocabulary - 1)].double() + scores[row, None]
    place, column = (inside & (found >= least[row, None]) & (found > floor_of_row[row, None])).nonzero(as_tuple=True)
    return Extensions(row[place].cpu().numpy(), words[place, column].cpu().numpy(), found[place, column].cpu().numpy())


def _class_maxima(log_probs: Tensor, classes: int) -> Tensor:
    """The largest value of each residue class [rows, classes]."""
    vocabulary = log_probs.shape[1]
    full = (vocabulary - 1) // classes * classes  # the words before the last, perhaps incomplete, stretch of classes
    last = log_probs[:, full:]
    if full == 0:
        return last
    maxima = log_probs[:, :full].unflatten(1, (-1, classes)).amax(dim=1)
    return torch.cat((torch.maximum(maxima[:, : last.shape[1]], last), maxima[:, last.shape[1] :]), dim=1)


def _kth_largest(maxima: Tensor, unit: Tensor, count: int) -> Tensor:
    """The `count`-th largest value [units] of each unit's rows; -inf where there are fewer."""
    sizes = torch.bincount(unit)
    units, widest, classes = len(sizes), int(sizes.max()), maxima.shape[1]
    if widest * classes < count:
        return maxima.new_full((units,), -torch.inf)
    if units > 1:
        place = torch.arange(len(unit), device=unit.device) - (sizes.cumsum(0) - sizes)[unit]
        padded = maxima.new_full((units, widest, classes), -torch.inf)
        padded[unit, place] = maxima
        maxima = padded
    return maxima.reshape(units, -1).topk(count, dim=1, sorted=False).values.amin(dim=1)


def best_of_each(unit: np.ndarray, keys: tuple[np.ndarray, ...], count: int) -> np.ndarray:
    """The places of the `count` first entries of each unit, by unit and then by the keys, the first one first."""
    order = np.lexsort((*reversed(keys), unit))
    ordered = unit[order]
    first = np.searchsorted(ordered, ordered)  # where the unit of each entry begins
    return order[np.arange(len(order)) - first < count]
