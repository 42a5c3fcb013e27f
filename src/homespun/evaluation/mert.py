"""Minimum error rate training of a reranker's weights, by exact line searches.

Och (2003), "Minimum error rate training in statistical machine translation", ACL, for the reranking of Lu et al.
(2021), "Federated natural language generation for personalized dialogue system", Eq. 7. A question Q has candidates R:

    score(R) = log p(R|Q, i) + λ log p(Q|R) + γ |R|

The features of a candidate are [log p(R|Q, i), log p(Q|R), |R|], and the weight of the first is 1. Every question takes
its candidate of highest score; the weights are those whose replies have the highest corpus BLEU.

Along a line of weights, the score of a candidate is linear in the step, so the best candidate of a question changes
only at the corners of the upper envelope of its candidates' lines. Between the corners of all questions BLEU is
constant: one sorted pass over them finds the best interval of the line.

Conventions of all functions here:

- Of candidates with equal scores, the one of lowest index wins.
- A candidate with a feature of -inf has the score -inf at all weights, also at λ = 0. If all candidates of a question
  have one, the first wins. NaN and +inf are rejected.
- λ lies within `lam_range` and γ within `gamma_range`. λ < 0 would favour replies from which the question cannot be
  guessed, the opposite of the objective (Li et al., 2016, "A diversity-promoting objective function for neural
  conversation models"), so the default range starts at 0. Their weights (1 − λ', λ') are λ = λ'/(1 − λ') here: λ = 5 is
  λ' = 5/6. A word adds log p(word) to the score, -3 to -5 at perplexities from 20 to 150, so beyond |γ| = 5 the length
  decides nearly alone. Both ranges include 0, which switches a term off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from homespun.core import seeds
from homespun.core.errors import InputError, raise_faults
from homespun.core.progress import Show, silent, start_count
from homespun.evaluation.bleu import ORDERS, SIZE, check_measure, corpus_bleu

FEATURES = 3
LAM_RANGE, GAMMA_RANGE = (0.0, 5.0), (-5.0, 5.0)
LAM_POINTS, GAMMA_POINTS = 21, 41
SMOOTHING = "exp"  # without smoothing, BLEU-4 of a few short replies is often 0 at all weights
STARTS, RANDOM_DIRECTIONS = 20, 8  # of 60 problems with 40 questions, none was below a grid of 401 x 401
NARROW = 1e-10  # relative width of intervals that are ignored: corners that differ by rounding only
ENTRIES = 2**20  # scores computed at once


@dataclass(frozen=True)
class Weights:
    """Weights of the reranker, and the BLEU of the replies it chooses with them."""

    lam: float
    gamma: float
    bleu: float


class BestStep(NamedTuple):
    """A step along a line, and the BLEU of the replies that are chosen there."""

    step: float
    bleu: float


@dataclass(frozen=True)
class _Lists:
    """The candidates of all questions, padded to the same number with candidates that never win."""

    features: np.ndarray  # [3, questions, candidates]
    counts: np.ndarray  # [questions, candidates, 10]
    order: int
    smoothing: str

    def bleu(self, counts: np.ndarray) -> np.ndarray:
        return np.asarray(corpus_bleu(counts, order=self.order, smoothing=self.smoothing))

    def at(self, lam: float, gamma: float) -> Weights:
        """The weights with the BLEU of the candidates chosen by them."""
        total = _grid_counts(self, lambdas=np.array([lam]), gammas=np.array([gamma]))[0, 0]
        return Weights(float(lam), float(gamma), float(self.bleu(total)))


def line_search(
    features: Sequence[np.ndarray],
    counts: Sequence[np.ndarray],
    *,
    origin: tuple[float, float],
    direction: tuple[float, float],
    low: float = -np.inf,
    high: float = np.inf,
    order: int = ORDERS,
    smoothing: str = SMOOTHING,
) -> BestStep:
    """The best step from `low` to `high` along the weights (λ, γ) = origin + step · direction.

    `features` has an array [candidates, 3] for every question, `counts` one [candidates, 10] of `bleu_counts`. The step
    is the middle of the interval of highest BLEU; beyond the first and the last corner of an unbounded line it is one
    away from the corner. Of equally good intervals, the widest wins, then the lowest.
    """
    lists = _padded(features, counts, order=order, smoothing=smoothing)
    if not np.isfinite([*origin, *direction]).all() or not any(direction) or not low < high:
        raise InputError(
            f"line from {origin} in the direction {direction}, steps from {low} to {high}: expected finite weights, a "
            "direction other than zero and low < high."
        )
    step = _best_step(lists, origin=origin, direction=direction, low=low, high=high)
    lam, gamma = (start + step * along for start, along in zip(origin, direction, strict=True))
    return BestStep(step, lists.at(lam, gamma).bleu)


def grid_counts(
    features: Sequence[np.ndarray], counts: Sequence[np.ndarray], *, lambdas: Sequence[float], gammas: Sequence[float]
) -> np.ndarray:
    """The summed BLEU statistics [lambdas, gammas, 10] of the candidates chosen at every point of a grid.

    They add up over clients: a server that receives only these sums tunes the weights with `tune_on_grid`.
    """
    lists = _padded(features, counts, order=ORDERS, smoothing=SMOOTHING)
    return _grid_counts(lists, lambdas=_finite(lambdas, "lambdas"), gammas=_finite(gammas, "gammas"))


def tune_on_grid(
    total_counts: np.ndarray,
    *,
    lambdas: Sequence[float],
    gammas: Sequence[float],
    order: int = ORDERS,
    smoothing: str = SMOOTHING,
) -> Weights:
    """The grid point of highest BLEU. Of equally good points, the one with the smallest |λ| wins, then the one with the
    smallest |γ|, then the first."""
    rows, columns = _finite(lambdas, "lambdas"), _finite(gammas, "gammas")
    if np.shape(total_counts) != (len(rows), len(columns), SIZE):
        raise InputError(
            f"counts of a grid have the shape {np.shape(total_counts)}. Expected [{len(rows)}, {len(columns)}, "
            f"{SIZE}]: use the grid of `grid_counts`."
        )
    scores = np.asarray(corpus_bleu(total_counts, order=order, smoothing=smoothing)).ravel()
    lam, gamma = (values.ravel() for values in np.meshgrid(rows, columns, indexing="ij"))
    best = np.lexsort((np.abs(gamma), np.abs(lam), -scores))[0]
    return Weights(float(lam[best]), float(gamma[best]), float(scores[best]))


def tune(
    features: Sequence[np.ndarray],
    counts: Sequence[np.ndarray],
    *,
    lambdas: Sequence[float] | None = None,
    gammas: Sequence[float] | None = None,
    lam_range: tuple[float, float] = LAM_RANGE,
    gamma_range: tuple[float, float] = GAMMA_RANGE,
    order: int = ORDERS,
    smoothing: str = SMOOTHING,
    seed: int = 0,
    progress: Show = silent,
) -> Weights:
    """Weights of high BLEU within the ranges. The same input and seed give the same weights.

    Three stages: all points of the grid `lambdas` x `gammas` (default: evenly spaced over the ranges; 0 is added);
    exact searches of all lines of that grid; from the best points, exact searches along coordinates and random
    directions until none gains. The result is at least as good as (0, 0), as every grid point, and as every other point
    on a line of the grid, except for points that lie exactly on a tie between candidates.
    """
    lists = _padded(features, counts, order=order, smoothing=smoothing)
    box = _checked_box(lam_range, gamma_range)
    rows, columns = (
        _grid_axis(given, within, name=name, points=points)
        for given, within, name, points in (
            (lambdas, lam_range, "lambdas", LAM_POINTS),
            (gammas, gamma_range, "gammas", GAMMA_POINTS),
        )
    )
    lines = [((0.0, gamma), (1.0, 0.0)) for gamma in columns] + [((lam, 0.0), (0.0, 1.0)) for lam in rows]
    done = start_count(progress, "tuning the reranker", total=1 + len(lines) + STARTS)
    total = _grid_counts(lists, lambdas=rows, gammas=columns)
    found = [tune_on_grid(total, lambdas=rows.tolist(), gammas=columns.tolist(), order=order, smoothing=smoothing)]
    done(1)
    for origin, direction in lines:
        found.append(_best_on_line(lists, box, origin=origin, direction=direction))
        done(1)
    starts = sorted(dict.fromkeys(found), key=lambda one: -one.bleu)[:STARTS]  # stable: earlier points win ties
    climbed = []
    for number, start in enumerate(starts):
        climbed.append(_climb(lists, box, start=start, draw=seeds.numpy_generator(seed, "mert", number)))
        done(1)
    done(STARTS - len(starts))
    return max(climbed, key=lambda one: one.bleu)  # the first of equals


def _climb(lists: _Lists, box: np.ndarray, *, start: Weights, draw: np.random.Generator) -> Weights:
    """Search along coordinates, random directions and the last displacement, until a pass over all gains nothing."""
    best, displacement = start, np.zeros(2)
    while True:
        before = best
        random = draw.normal(size=(RANDOM_DIRECTIONS, 2)) * (box[:, 1] - box[:, 0])
        for along in (*np.eye(2), *random, displacement):
            if along.any():
                found = _best_on_line(lists, box, origin=(best.lam, best.gamma), direction=(along[0], along[1]))
                best = found if found.bleu > best.bleu else best
        if best.bleu <= before.bleu:
            return best
        displacement = np.array([best.lam - before.lam, best.gamma - before.gamma])


def _best_on_line(
    lists: _Lists, box: np.ndarray, *, origin: tuple[float, float], direction: tuple[float, float]
) -> Weights:
    """The best weights on the part of a line that lies in the box. The origin lies in the box."""
    start, along = np.asarray(origin), np.asarray(direction)
    moving = along != 0
    ends = (box[moving] - start[moving, None]) / along[moving, None]
    low, high = float(ends.min(axis=1).max()), float(ends.max(axis=1).min())
    if not low < high:
        return lists.at(*origin)
    step = _best_step(lists, origin=origin, direction=direction, low=low, high=high)
    lam, gamma = np.clip(start + step * along, box[:, 0], box[:, 1])
    return lists.at(lam, gamma)


def _best_step(
    lists: _Lists, *, origin: tuple[float, float], direction: tuple[float, float], low: float, high: float
) -> float:
    """The middle of the best interval of a line."""
    first, inverse, length = lists.features
    intercepts = first + origin[0] * inverse + origin[1] * length
    slopes = direction[0] * inverse + direction[1] * length
    start, corners = _upper_envelopes(intercepts, slopes, low=low, high=high)
    corners = corners[np.argsort(corners["step"], kind="stable")]
    gains = lists.counts[corners["question"], corners["after"]] - lists.counts[corners["question"], corners["before"]]
    total = lists.counts[np.arange(len(start)), start].sum(axis=0)
    scores = lists.bleu(total + np.vstack([np.zeros_like(total), np.cumsum(gains, axis=0)]))
    edges = _edges(corners["step"], low=low, high=high)
    left, right = edges[:-1], edges[1:]
    width = right - left
    wide = width > NARROW * np.maximum(1.0, np.maximum(np.abs(left), np.abs(right)))
    if not wide.any():
        return float(left[0] + width.sum() / 2)
    best = np.lexsort((left, -width, np.where(wide, -scores, np.inf)))[0]
    return float(left[best] + width[best] / 2)


def _edges(steps: np.ndarray, *, low: float, high: float) -> np.ndarray:
    """Ends of all intervals. An unbounded interval ends two beyond its corner, so that its middle is one beyond."""
    if np.isinf(low):
        low = steps[0] - 2 if len(steps) else (-1.0 if np.isinf(high) else high - 2)
    if np.isinf(high):
        high = steps[-1] + 2 if len(steps) else low + 2
    return np.concatenate([[low], steps, [high]])


CORNER = np.dtype([("step", np.float64), ("question", np.int64), ("before", np.int64), ("after", np.int64)])


def _upper_envelopes(
    intercepts: np.ndarray, slopes: np.ndarray, *, low: float, high: float
) -> tuple[np.ndarray, np.ndarray]:
    """The best line of every question just above `low`, and all corners of the upper envelopes below `high`.

    Walks all envelopes at once from left to right: from the current line, the next is the one among the steeper lines
    that crosses it first, and of several that cross it there the steepest. A line of -inf crosses nothing.
    """
    start = _lines_at(intercepts, slopes, step=low)
    active = np.flatnonzero(np.isfinite(intercepts).any(axis=1))
    heights, rises, current = intercepts[active], slopes[active], start[active]
    reached = np.full(len(active), low)
    corners = []
    while len(active):
        rows = np.arange(len(active))
        steeper = rises - rises[rows, current][:, None]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            crossing = np.where(steeper > 0, (heights[rows, current][:, None] - heights) / steeper, np.inf)
        first = crossing.min(axis=1)
        after = np.where(crossing == first[:, None], rises, -np.inf).argmax(axis=1)
        reached = np.maximum(first, reached)
        kept = reached < high
        found = np.empty(kept.sum(), dtype=CORNER)
        found["step"], found["question"] = reached[kept], active[kept]
        found["before"], found["after"] = current[kept], after[kept]
        corners.append(found)
        active, heights, rises = active[kept], heights[kept], rises[kept]
        current, reached = after[kept], reached[kept]
    return start, np.concatenate(corners) if corners else np.empty(0, dtype=CORNER)


def _lines_at(intercepts: np.ndarray, slopes: np.ndarray, *, step: float) -> np.ndarray:
    """The best line of every question just above a step, which may be -inf; of equal lines the first."""
    if np.isinf(step):
        flattest = np.where(np.isfinite(intercepts), slopes, np.inf).min(axis=1, keepdims=True)
        return np.where(slopes == flattest, intercepts, -np.inf).argmax(axis=1)
    scores = intercepts + step * slopes
    return np.where(scores == scores.max(axis=1, keepdims=True), slopes, -np.inf).argmax(axis=1)


def _grid_counts(lists: _Lists, *, lambdas: np.ndarray, gammas: np.ndarray) -> np.ndarray:
    first, inverse, length = lists.features
    questions = np.arange(first.shape[0])
    total = np.empty((len(lambdas), len(gammas), SIZE), dtype=lists.counts.dtype)
    block = max(1, ENTRIES // first.size)
    for row, lam in enumerate(lambdas):
        base = first + lam * inverse
        for begin in range(0, len(gammas), block):
            some = gammas[begin : begin + block]
            chosen = (base + some[:, None, None] * length).argmax(axis=2)
            total[row, begin : begin + block] = lists.counts[questions, chosen].sum(axis=1)
    return total


def _padded(features: Sequence[np.ndarray], counts: Sequence[np.ndarray], *, order: int, smoothing: str) -> _Lists:
    """All lists as arrays, checked."""
    check_measure(order, smoothing)
    if not len(features) or len(features) != len(counts):
        raise InputError(
            f"n-best lists: features of {len(features)} questions and counts of {len(counts)}. Expected as many, and "
            "at least one."
        )
    faults = [
        f"question {number}: {fault}"
        for number, (one, other) in enumerate(zip(features, counts, strict=True))
        if (fault := _fault(np.asarray(one), np.asarray(other)))
    ]
    if faults:
        raise_faults(InputError, "n-best lists", faults)
    most = max(len(one) for one in features)
    padded = np.zeros((FEATURES, len(features), most))
    padded[0] = -np.inf
    summed = np.zeros((len(features), most, SIZE), dtype=np.int64)
    for number, (one, other) in enumerate(zip(features, counts, strict=True)):
        possible = np.isfinite(one).all(axis=1)
        padded[:, number, : len(one)][:, possible] = np.asarray(one, dtype=np.float64)[possible].T
        summed[number, : len(one)] = other
    return _Lists(padded, summed, order, smoothing)


def _fault(features: np.ndarray, counts: np.ndarray) -> str:
    """What is wrong with the list of a question, or an empty string."""
    if features.ndim != 2 or features.shape[1] != FEATURES or counts.shape != (len(features), SIZE):
        return (
            f"features of shape {features.shape} and counts of shape {counts.shape}. Expected [candidates, {FEATURES}] "
            f"and [candidates, {SIZE}]."
        )
    if not len(features):
        return "no candidates. Leave the question out, or widen its beam."
    if np.isnan(features).any() or np.isposinf(features).any():
        return "features that are NaN or +inf. Expected finite numbers or -inf."
    return ""


def _checked_box(lam_range: tuple[float, float], gamma_range: tuple[float, float]) -> np.ndarray:
    box = np.array([lam_range, gamma_range], dtype=np.float64)
    if not np.isfinite(box).all() or (box[:, 0] > 0).any() or (box[:, 1] < 0).any():
        raise InputError(
            f"lam_range={lam_range}, gamma_range={gamma_range}: expected finite ranges (low, high) that include 0."
        )
    return box


def _grid_axis(given: Sequence[float] | None, within: tuple[float, float], *, name: str, points: int) -> np.ndarray:
    values = np.linspace(*within, points) if given is None else _finite(given, name)
    if values.min() < within[0] or values.max() > within[1]:
        raise InputError(f"{name} from {values.min()} to {values.max()}: expected values within {within}.")
    return np.union1d(values, [0.0])


def _finite(values: Sequence[float] | np.ndarray, name: str) -> np.ndarray:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not len(found) or not np.isfinite(found).all():
        raise InputError(f"{name}: expected a list of finite numbers.")
    return found
