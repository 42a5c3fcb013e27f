"""Metrics as pure functions of labels and scores."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np


def accuracy(labels: np.ndarray, logits: np.ndarray) -> float:
    return float(np.mean(logits.argmax(axis=1) == labels)) if len(labels) else float("nan")


def cross_entropy(labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """One value per example, in nats."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Area under the ROC curve of a two-class model's scores; NaN if only one class occurs."""
    if len(np.unique(labels)) < 2:
        return float("nan")
    from sklearn.metrics import roc_auc_score  # slow to import, and few tasks need it

    return float(roc_auc_score(labels, scores))


def worst_tenth(values: Sequence[float] | np.ndarray, *, higher_is_better: bool = True) -> float:
    """The mean over the worst tenth of users (at least one user)."""
    if len(values) == 0:
        return float("nan")
    ordered = np.sort(np.asarray(values, dtype=float))
    worst = ceil(len(ordered) / 10)
    return float((ordered[:worst] if higher_is_better else ordered[-worst:]).mean())


def majority(labels: np.ndarray, *, classes: int) -> int:
    """The most frequent label; ties go to the lowest index."""
    return int(np.bincount(labels, minlength=classes).argmax())


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; the latter is NaN for a single value."""
    array = np.asarray(values, dtype=float)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else float("nan")


def macro_f1(true_positives: np.ndarray, confused: np.ndarray) -> float:
    """The mean over classes of 2 TP / (2 TP + FP + FN), from each class's TP and FP + FN (`confused`).

    A class that neither occurs nor is predicted counts as 0. Always predicting the same of two equally frequent classes
    gives 1/3.
    """
    found = 2 * true_positives + confused
    return float(np.mean(np.where(found > 0, 2 * true_positives / np.maximum(found, 1), 0.0)))
