"""Metrics of generated replies, with intervals over conversations.

| name | of a list of replies |
|---|---|
| `bleu_1`, `bleu_2`, `bleu_4` | corpus BLEU from 0 to 1, one reference per reply |
| `bleu_4_smoothed` | corpus BLEU-4 with "exp" smoothing; differs from `bleu_4` only if an order has no match |
| `sentence_bleu` | mean BLEU of single replies with "add-one" smoothing, of orders up to 4 that a reply has |
| `distinct_1`, `distinct_2` | number of different n-grams in all replies / number of their n-grams (Li et al., 2016) |
| `length` | mean number of words |
| `most_frequent` | share of the most frequent reply; 1 if all replies are the same |

Distinct-n falls with the number of replies: compare systems on the same questions only. A resample repeats
conversations and so has fewer different n-grams than a sample of its size. Its interval therefore comes from a
bootstrap of the linearized statistic: the influence of each conversation, by leaving it out (Davison and Hinkley, 1997,
"Bootstrap methods and their application"). The interval of `most_frequent` is that of the share of the reply which is
the most frequent in this sample.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from homespun.core.errors import InputError
from homespun.evaluation.bleu import SIZE, bleu_counts, corpus_bleu, sentence_bleu
from homespun.evaluation.intervals import Estimate, cluster_numbers, estimate, resampled_sums

Words = Sequence[str]
SUMS = SIZE + 3  # BLEU counts, sentence BLEU, number of replies, number of the most frequent reply
DISTINCT = (1, 2)


def evaluate_replies(
    replies: Sequence[Words], references: Sequence[Words], *, clusters: Sequence[Hashable], seed: int = 0
) -> dict[str, Estimate]:
    """All metrics of replies, given as lists of words. `clusters` names the conversation of every reply."""
    numbers = _checked(replies, references, clusters)
    units = int(numbers.max()) + 1
    values, resampled = _values_and_resamples(replies, references, numbers=numbers, seed=seed)
    return {name: estimate(float(values[name]), resampled[name], units=units) for name in values}


def distinct(replies: Sequence[Words], n: int) -> float:
    """Number of different n-grams in all replies / number of their n-grams; 0 if there are none.

    Example:
        >>> distinct([["a", "b", "a"], ["a"]], 1), distinct([["a", "b", "a"], ["a"]], 2)
        (0.5, 1.0)
    """
    ngrams = [ngram for reply in replies for ngram in _ngrams(reply, n)]
    return len(set(ngrams)) / max(len(ngrams), 1)


def _ngrams(words: Words, n: int) -> list[tuple[str, ...]]:
    return [tuple(words[place : place + n]) for place in range(len(words) - n + 1)]


def _values_and_resamples(
    replies: Sequence[Words], references: Sequence[Words], *, numbers: np.ndarray, seed: int
) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
    """Every metric of the replies, and of all resamples."""
    sums = _cluster_sums(replies, references, numbers)
    influences = np.stack([_distinct_influences(replies, numbers, n) for n in DISTINCT], axis=1)
    total = resampled_sums(np.hstack([sums, influences]), seed=seed)
    values, resampled = _additive_metrics(sums.sum(axis=0)), _additive_metrics(total[:, :SUMS])
    for column, n in enumerate(DISTINCT):
        value = np.asarray(distinct(replies, n))
        values[f"distinct_{n}"] = value
        resampled[f"distinct_{n}"] = value + total[:, SUMS + column] / len(sums)
    return values, resampled


def _cluster_sums(replies: Sequence[Words], references: Sequence[Words], numbers: np.ndarray) -> np.ndarray:
    """Statistics [clusters, SUMS] that add up over conversations."""
    texts = [tuple(reply) for reply in replies]
    most_frequent = Counter(texts).most_common(1)[0][0]  # of equals the first that occurs
    sums = np.zeros((int(numbers.max()) + 1, SUMS))
    for number, text, reference in zip(numbers, texts, references, strict=True):
        counts = bleu_counts(text, reference)
        sums[number] += [*counts, sentence_bleu(counts), 1, text == most_frequent]
    return sums


def _additive_metrics(sums: np.ndarray) -> dict[str, np.ndarray]:
    counts, replies = sums[..., :SIZE], sums[..., SIZE + 1]
    return {
        **{f"bleu_{order}": np.asarray(corpus_bleu(counts, order=order)) for order in (1, 2, 4)},
        "bleu_4_smoothed": np.asarray(corpus_bleu(counts, smoothing="exp")),
        "sentence_bleu": sums[..., SIZE] / replies,
        "length": counts[..., -2] / replies,
        "most_frequent": sums[..., SIZE + 2] / replies,
    }


def _distinct_influences(replies: Sequence[Words], numbers: np.ndarray, n: int) -> np.ndarray:
    """How much each cluster adds to distinct-n, from its value without the cluster. They sum to zero."""
    units = int(numbers.max()) + 1
    tokens, only_there = np.zeros(units), np.zeros(units)
    places: defaultdict[tuple[str, ...], set[int]] = defaultdict(set)
    for number, reply in zip(numbers.tolist(), replies, strict=True):
        for ngram in _ngrams(reply, n):
            places[ngram].add(number)
            tokens[number] += 1
    for found in places.values():
        if len(found) == 1:
            only_there[next(iter(found))] += 1
    without = (len(places) - only_there) / np.maximum(tokens.sum() - tokens, 1)
    return (units - 1) * (without.mean() - without)


def _checked(replies: Sequence[Words], references: Sequence[Words], clusters: Sequence[Hashable]) -> np.ndarray:
    """The clusters as numbers, if all lists have the same length."""
    if not len(replies) == len(references) == len(clusters) > 0:
        raise InputError(
            f"replies: {len(replies)} replies, {len(references)} references, {len(clusters)} clusters. Expected as "
            "many of each, and at least one."
        )
    given = {"replies": replies, "references": references}
    texts = [name for name, one in given.items() if any(isinstance(text, str) for text in one)]
    if texts:
        raise InputError(f"replies: {', '.join(texts)} are texts. Expected lists of words: split them first.")
    return cluster_numbers(clusters)
