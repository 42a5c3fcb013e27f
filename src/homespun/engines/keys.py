"""The random draws of local training: batches, and the column `key`, from which a stochastic loss draws random numbers
(`core/draws.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from homespun.core import draws, seeds
from homespun.core.batches import plan_batches
from homespun.core.method import Batch, BuiltMethod, Phase
from homespun.engines.client import SEED_PURPOSE, Mode


class BatchPlanner:
    """Draws the batches of one client in one round. Phases share a generator, except those that have a stream."""

    def __init__(self, *, seed: int, mode: Mode, round: int, user: str) -> None:
        self._of_client = (seed, SEED_PURPOSE[mode], round, user)
        self._generators: dict[str, np.random.Generator] = {}

    def plan(self, examples: int, phase: Phase) -> list[np.ndarray]:
        if phase.stream not in self._generators:
            parts = (phase.stream,) if phase.stream else ()
            self._generators[phase.stream] = seeds.numpy_generator(*self._of_client, *parts)
        return plan_batches(examples, phase, self._generators[phase.stream])


@dataclass(frozen=True)
class PhaseKeys:
    """The values from which the keys of one phase derive. No keys are added if the loss is not stochastic."""

    stochastic: bool
    seed: int
    mode: Mode
    round: int
    phase: int | str  # its index in the method, or its stream
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


def phase_keys(
    built: BuiltMethod, phase: Phase, *, seed: int, mode: Mode, round: int, number: int, users: Sequence[str]
) -> PhaseKeys:
    """Return the keys of a phase, which is the `number`-th of the method."""
    return PhaseKeys(built.method.local.stochastic, seed, mode, round, phase.stream or number, users)


def client_batches(data: Batch, plan: Sequence[np.ndarray], keys: PhaseKeys) -> list[Batch]:
    """Return the batches of one client's phase."""
    device = next(iter(data.values())).device
    found = []
    for step, positions in enumerate(plan):
        rows = torch.from_numpy(positions).to(device)
        found.append(keys.add({name: column[rows] for name, column in data.items()}, step=step, rows=rows))
    return found
