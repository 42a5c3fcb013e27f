"""Draws the batches of local training. Every engine uses this function."""

from __future__ import annotations

import numpy as np

from homespun.core.method import Phase


def plan_batches(examples: int, phase: Phase, generator: np.random.Generator) -> list[np.ndarray]:
    """Return one array of example positions per step.

    Examples are reshuffled every epoch; the last batch of an epoch may be short. With `steps`, epochs are repeated
    until there are that many steps. Without examples there are no steps.
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
