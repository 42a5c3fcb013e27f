"""BLEU from statistics that add up over sentences, and so over clients.

Papineni et al. (2002), "BLEU: a method for automatic evaluation of machine translation", ACL, with one reference:

    BLEU-N = BP · exp(1/N · Σ_{n≤N} log p_n),   p_n = matches_n / totals_n,   BP = min(1, exp(1 − reference/hypothesis))

matches_n counts the n-grams of a hypothesis that its reference has too, each at most as often as there; totals_n counts
all of them. The statistics of a (hypothesis, reference) pair are ten integers:

    0..3   matches of n = 1..4          8   words of the hypothesis
    4..7   totals of n = 1..4           9   words of the reference

Their sum over sentences gives the BLEU of the corpus. BLEU is 0 if no word matches, or if there are no n-grams of an
order. Smoothing:

- "none": as above; 0 if an order has no match.
- "exp": the k-th order without a match counts as 1/2^k matches (NIST's mteval-v13a, the default of sacrebleu).
- "add-one": one more match and one more n-gram for n > 1 (Lin and Och, 2004, "ORANGE", COLING).
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from homespun.core.errors import InputError, nearest

ORDERS = 4
SIZE = 2 * ORDERS + 2  # statistics per sentence
SMOOTHINGS = ("none", "exp", "add-one")
EXTRA = "pip install 'homespun[dialogue]'"


def bleu_counts(hypothesis: Sequence[str], reference: Sequence[str]) -> np.ndarray:
    """The ten statistics of a pair of word sequences.

    Example:
        >>> bleu_counts("the the cat".split(), "the cat".split()).tolist()
        [2, 1, 0, 0, 3, 2, 1, 0, 3, 2]
    """
    counts = np.zeros(SIZE, dtype=np.int64)
    for n in range(1, ORDERS + 1):
        ours, theirs = _ngrams(hypothesis, n), _ngrams(reference, n)
        counts[n - 1] = sum(min(count, theirs[ngram]) for ngram, count in ours.items() if ngram in theirs)
        counts[ORDERS + n - 1] = max(len(hypothesis) - n + 1, 0)
    counts[-2:] = len(hypothesis), len(reference)
    return counts


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[place : place + n]) for place in range(len(words) - n + 1))


def corpus_bleu(counts: np.ndarray, *, order: int = ORDERS, smoothing: str = "none") -> Any:
    """BLEU-`order` from 0 to 1 of summed statistics [..., 10]: a float, or an array of the leading shape.

    Example:
        >>> float(corpus_bleu(bleu_counts("a b c".split(), "a b d".split()), order=2))  # √(2/3 · 1/2)
        0.5773502691896257
    """
    check_measure(order, smoothing)
    counts = np.asarray(counts)
    if counts.ndim == 0 or counts.shape[-1] != SIZE:
        raise InputError(f"BLEU statistics have the shape {counts.shape}. Expected [..., {SIZE}], see `bleu_counts`.")
    matches = counts[..., :order].astype(np.float64)
    totals = counts[..., ORDERS : ORDERS + order].astype(np.float64)
    some = matches[..., 0] > 0
    if smoothing == "add-one":
        later = np.arange(order) > 0
        matches, totals = matches + later, totals + later
    elif smoothing == "exp":
        missing = matches == 0
        matches = np.where(missing, 0.5 ** np.cumsum(missing, axis=-1), matches)
    some = some & (matches > 0).all(axis=-1) & (totals > 0).all(axis=-1)
    precisions = np.where(some[..., None], matches, 1.0) / np.where(some[..., None], totals, 1.0)
    hypothesis, reference = counts[..., -2], counts[..., -1]
    brevity = np.minimum(0.0, 1.0 - reference / np.maximum(hypothesis, 1))
    return np.where(some, np.exp(brevity + np.log(precisions).mean(axis=-1)), 0.0)[()]


def sentence_bleu(counts: np.ndarray) -> float:
    """BLEU of the statistics of one sentence with "add-one" smoothing, of the orders that a hypothesis of its length
    has, four at most: orders without n-grams would count as right.

    Example:
        >>> sentence_bleu(bleu_counts("no .".split(), "yes .".split()))  # √(1/2 · (0 + 1)/(1 + 1))
        0.5
    """
    order = min(max(int(counts[-2]), 1), ORDERS)
    return float(corpus_bleu(counts, order=order, smoothing="add-one"))


def check_measure(order: int, smoothing: str) -> None:
    """Reject an unknown order or smoothing of BLEU."""
    if order not in range(1, ORDERS + 1):
        raise InputError(f"BLEU of order {order}: choose an order from 1 to {ORDERS}.")
    if smoothing not in SMOOTHINGS:
        known = ", ".join(SMOOTHINGS)
        raise InputError(f"unknown smoothing {smoothing!r}. Choose one of {known}.{nearest(smoothing, SMOOTHINGS)}")


class SacreBleu(NamedTuple):
    """BLEU-4 from 0 to 1, and sacrebleu's signature, which names its version, tokenizer and smoothing."""

    bleu: float
    signature: str


def sacrebleu_corpus(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "13a", smoothing: str = "exp"
) -> SacreBleu:
    """Corpus BLEU-4 of texts by sacrebleu (Post, 2018, "A call for clarity in reporting BLEU scores", WMT), to compare
    with published numbers. With `tokenize="none"` words are what whitespace separates, and the value equals that of
    `corpus_bleu`. `smoothing` is sacrebleu's: "none", "exp", "floor" or "add-k"."""
    if not hypotheses or len(hypotheses) != len(references):
        raise InputError(
            f"{len(hypotheses)} hypotheses and {len(references)} references. Expected as many, and at least one."
        )
    metric = _sacrebleu().BLEU(tokenize=tokenize, smooth_method=smoothing, force=True)
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return SacreBleu(score.score / 100, str(metric.get_signature()))


def _sacrebleu() -> ModuleType:
    try:
        return importlib.import_module("sacrebleu")
    except ImportError as error:
        raise InputError(f"sacrebleu's BLEU needs the extra dialogue. Install it with `{EXTRA}`.") from error
