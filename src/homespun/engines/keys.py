"""Adds the column `key` to training batches, from which a stochastic loss draws random numbers (`core/draws.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from homespun.core import draws
from homespun.core.method import Batch, BuiltMethod
from homespun.engines.client import SEED_PURPOSE, Mode


@dataclass(frozen=True)
class PhaseKeys:
    """The values from which the keys of one phase derive. No keys are added if the loss is not stochastic."""

    stochastic: bool
    seed: int
    mode: Mode
    round: int
    phase: int
    users: Sequence[str]

    def add(self, batch: Batch, *, step: int, rows: Tensor) -> Batch:
        """Add the keys to a batch. `rows` are positions of examples: [n] for a single client, or [clients, n] for the
        first clients."""
        if not self.stochastic:
            return batch
        users = self.users[: 1 if rows.dim() == 1 else len(rows)]
        purpose = SEED_PURPOSE[self.mode]
        steps = [draws.step_key(self.seed, purpose, self.round, user, phase=self.phase, step=step) for user in users]
        return draws.add_keys(batch, steps, rows)


def phase_keys(built: BuiltMethod, *, seed: int, mode: Mode, round: int, phase: int, users: Sequence[str]) -> PhaseKeys:
    return PhaseKeys(built.method.local.stochastic, seed, mode, round, phase, users)


def client_batches(data: Batch, plan: Sequence[np.ndarray], keys: PhaseKeys) -> list[Batch]:
    """Return the batches of one client's phase."""
    device = next(iter(data.values())).device
    found = []
    for step, positions in enumerate(plan):
        rows = torch.from_numpy(positions).to(device)
        found.append(keys.add({name: column[rows] for name, column in data.items()}, step=step, rows=rows))
    return found
