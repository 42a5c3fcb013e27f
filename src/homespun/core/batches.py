"""Which examples each local step sees: the one place where batches are drawn."""

from __future__ import annotations

import numpy as np

from homespun.core.method import Phase


def plan_batches(examples: int, phase: Phase, generator: np.random.Generator) -> list[np.ndarray]:
    """One array of example positions per step.

    Examples are reshuffled every epoch and dealt out in order; the last batch of an epoch may be short.
    With `steps`, epochs follow one another until the steps are used up. Nothing to learn from: no steps.
    """
    if examples == 0:
        return []
    batches: list[np.ndarray] = []
    per_epoch = -(-examples // phase.batch)
    steps = phase.steps if phase.steps is not None else per_epoch * (phase.epochs or 0)
    while len(batches) < steps:
        order = generator.permutation(examples)
        batches += [order[start : start + phase.batch] for start in range(0, examples, phase.batch)]
    return batches[:steps]
