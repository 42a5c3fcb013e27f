"""Central training of one network on public examples: steps of Adam, held-out scores, checkpoints.

What is trained is an `Objective`: a reply model (`reply_training`) or a next-word model. The examples of a step are a
function of the seed and the step's number, and so must be the objective's other draws. A checkpoint then needs the
weights, the optimizer's moments and the number of steps, but no generator state.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Protocol, TypeAlias

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from homespun.core.seeds import derive, numpy_generator
from homespun.core.settings import Settings
from homespun.system.disk import write_whole

CHECKPOINT = "checkpoint.safetensors"
LARGEST_LOSS = 700.0  # of a word; a perplexity beyond it does not fit a float
Scores: TypeAlias = dict[str, float]  # held-out scores by name, with the number of the `epoch`


class CentralSettings(Settings):
    """Settings of central training, whatever is trained."""

    epochs: PositiveInt = 10
    """Passes over the training examples."""
    batch: PositiveInt = 256
    """Examples in a step."""
    lr: PositiveFloat = 0.003
    """Learning rate of Adam at the first step; it falls linearly to `final_lr` of this."""
    final_lr: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share of `lr` that is left at the last step. 1: constant."""
    clip_norm: PositiveFloat = 5.0
    """Maximum L2 norm of a step's gradient."""
    seed: NonNegativeInt = 0
    """All random draws derive from it."""
    checkpoint_minutes: NonNegativeFloat = 3.0
    """Minutes between checkpoints."""
    threads: PositiveInt | None = None
    """Compute threads. Not set: one per CPU core. The last bits of the weights depend on it."""


class Objective(Protocol):
    """What is trained, and on which examples."""

    @property
    def settings(self) -> CentralSettings: ...

    @property
    def examples(self) -> int:
        """The number of training examples."""

    def build(self) -> nn.Module:
        """The network with initial weights."""

    def losses(self, network: nn.Module, rows: np.ndarray, *, step: int) -> Iterator[Tensor]:
        """Parts of the mean loss of these examples. Each is differentiated before the next one is computed."""

    def evaluate(self, network: nn.Module, *, epoch: int) -> Scores:
        """Held-out scores."""

    def best(self, history: Sequence[Scores]) -> Scores:
        """The scores of the epoch whose weights are kept."""


@dataclass(frozen=True)
class StepProgress:
    step: int
    steps: int
    loss: float
    epoch: Scores | None = None  # set after the last step of an epoch


@dataclass
class TrainingState:
    """The state between steps. Steps modify it in place, because copying all weights would take time."""

    network: nn.Module
    optimizer: torch.optim.Adam
    step: int = 0
    seconds: float = 0.0
    history: list[Scores] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)  # weights of the best epoch


def steps_per_epoch(objective: Objective) -> int:
    return math.ceil(objective.examples / objective.settings.batch)


def total_steps(objective: Objective) -> int:
    return steps_per_epoch(objective) * objective.settings.epochs


def initial_state(objective: Objective) -> TrainingState:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(objective.settings.seed, "initial parameters") >> 1)
        network = objective.build()
    for value in network.parameters():
        # Otherwise the two biases of an LSTM layer, which have the same gradient, would share one `grad`: autograd
        # would add to it twice, and clipping would scale it twice.
        value.grad = torch.zeros_like(value)
    return TrainingState(network, torch.optim.Adam(network.parameters(), lr=objective.settings.lr, fused=True))


def train(state: TrainingState, objective: Objective, *, folder: Path) -> Iterator[StepProgress]:
    """Train the remaining steps, with checkpoints in `folder`."""
    settings, per_epoch = objective.settings, steps_per_epoch(objective)
    total, saved = total_steps(objective), time.monotonic()
    while state.step < total:
        started = time.monotonic()
        epoch, number = divmod(state.step, per_epoch)
        order = numpy_generator(settings.seed, "order", epoch).permutation(objective.examples)
        rows = order[number * settings.batch : (number + 1) * settings.batch]
        loss = take_step(state, objective, rows, progress=state.step / total)
        state.step += 1
        scores = _finish_epoch(state, objective) if state.step % per_epoch == 0 else None
        state.seconds += time.monotonic() - started
        if scores or time.monotonic() - saved > 60 * settings.checkpoint_minutes:
            save_checkpoint(state, folder / CHECKPOINT)
            saved = time.monotonic()
        yield StepProgress(state.step, total, loss, scores)


def take_step(state: TrainingState, objective: Objective, rows: np.ndarray, *, progress: float) -> float:
    """One step of Adam on these examples; returns their mean loss."""
    settings, total = objective.settings, 0.0
    state.optimizer.zero_grad(set_to_none=False)  # see `initial_state`
    for loss in objective.losses(state.network, rows, step=state.step):
        loss.backward()
        total += float(loss.detach())
    torch.nn.utils.clip_grad_norm_(state.network.parameters(), settings.clip_norm)
    for group in state.optimizer.param_groups:
        group["lr"] = settings.lr * (1 - progress * (1 - settings.final_lr))
    state.optimizer.step()
    return total


def perplexity(loss: float) -> float:
    """exp of a mean loss, or infinity."""
    return math.inf if loss > LARGEST_LOSS else math.exp(loss)


def _finish_epoch(state: TrainingState, objective: Objective) -> Scores:
    scores = objective.evaluate(state.network, epoch=state.step // steps_per_epoch(objective))
    state.history.append(scores)
    if objective.best(state.history) is scores:
        state.best = {name: value.detach().clone() for name, value in state.network.named_parameters()}
    return scores


def save_checkpoint(state: TrainingState, path: Path) -> None:
    tensors = {f"network/{name}": value.detach() for name, value in state.network.named_parameters()}
    tensors |= {f"best/{name}": value for name, value in state.best.items()}
    for place, moments in state.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{place}/{name}": value for name, value in moments.items()}
    metadata = {"step": str(state.step), "seconds": repr(state.seconds), "history": json.dumps(state.history)}
    write_whole(path, save(tensors, metadata=metadata))


def load_checkpoint(path: Path, objective: Objective) -> TrainingState:
    state = initial_state(objective)
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    moments: dict[int, dict[str, Tensor]] = {}
    named = dict(state.network.named_parameters())
    with torch.no_grad():
        for key, value in tensors.items():
            kind, _, rest = key.partition("/")
            if kind == "network":
                named[rest].copy_(value)
            elif kind == "best":
                state.best[rest] = value
            else:
                place, _, name = rest.partition("/")
                moments.setdefault(int(place), {})[name] = value
    groups = state.optimizer.state_dict()["param_groups"]
    state.optimizer.load_state_dict({"state": moments, "param_groups": groups})
    state.step, state.seconds = int(metadata["step"]), float(metadata["seconds"])
    state.history = json.loads(metadata["history"])
    return state
