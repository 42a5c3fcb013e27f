"""Training steps, checkpoints from which a killed run resumes, and evaluation.

The sequences of a step are a function of the seed and the step number, and there are no other random draws. So a
checkpoint needs only the weights, the optimizer's moments and the number of steps, but no generator state.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from homespun.core.errors import RunError
from homespun.core.seeds import numpy_generator
from homespun.core.settings import Settings
from homespun.pretraining.corpus import PADDING, Corpus, CorpusSettings
from homespun.pretraining.network import NetworkSettings, build_network, mean_loss
from homespun.system.disk import write_whole

CHECKPOINT = "checkpoint.safetensors"
TIMED_STEPS = 6  # steps to time, to compute how many fit into the requested minutes
MEASURED_ROWS = 32

Share = Annotated[float, Field(ge=0, le=1)]


class PretrainSettings(Settings):
    """The settings of a run. The corpus records the sources and their weights."""

    seed: int = 0
    """All random draws derive from it."""
    minutes: PositiveFloat = 65.0
    """Training time in minutes; a timing at the start converts it to steps."""
    steps: PositiveInt | None = None
    """Number of training steps, instead of minutes."""
    batch: PositiveInt = 8
    """Sequences in a step."""
    rate: PositiveFloat = 1.5e-3
    """Peak learning rate."""
    warm_up: Share = 0.03
    """Share of the steps in which the learning rate rises linearly."""
    final_rate: Share = 0.05
    """Final learning rate of the cosine decay, as a share of the peak."""
    betas: tuple[float, float] = (0.9, 0.98)
    """AdamW's betas."""
    decay: NonNegativeFloat = 0.1
    """AdamW's weight decay."""
    clip: PositiveFloat = 1.0
    """Maximum L2 norm of the gradient."""
    voiceless: Share = 0.25
    """Share of the sequences without style vectors for their source and stretch."""
    checkpoint_minutes: NonNegativeFloat = 3.0
    """Minutes between checkpoints."""
    checkpoint_steps: PositiveInt | None = None
    """Steps between checkpoints, instead of minutes."""
    corpus: CorpusSettings = CorpusSettings()
    """How texts become sequences."""
    network: NetworkSettings = NetworkSettings()
    """The network's size."""


@dataclass(frozen=True)
class Progress:
    """A completed step."""

    step: int
    steps: int
    loss: float
    seconds: float  # total training time, including earlier starts of the run


@dataclass
class State:
    """The state of a run between steps. Steps modify it in place, because copying all weights would take time."""

    network: Any
    style: torch.nn.Parameter  # a vector for each source, then one for each stretch; see `network`
    optimizer: torch.optim.AdamW
    steps: int
    step: int = 0
    seconds: float = 0.0
    tokens: int = 0


def rate_at(step: int, steps: int, settings: PretrainSettings) -> float:
    """The learning rate of a step: linear warm-up, then cosine decay."""
    rise = max(1, round(settings.warm_up * steps))
    if step < rise:
        return settings.rate * (step + 1) / rise
    done = (step - rise) / max(1, steps - rise)
    return settings.rate * (settings.final_rate + (1 - settings.final_rate) * (1 + math.cos(math.pi * done)) / 2)


def order_sequences(sizes: Mapping[str, int], weights: Mapping[str, float], *, count: int, seed: int) -> np.ndarray:
    """The order of reading: `count` indices into the concatenated sequences of all sources.

    Each draw picks a source in proportion to weight times size. A source is read completely before any of it repeats.
    """
    names = list(sizes)
    shares = np.array([sizes[name] * weights[name] for name in names], dtype=np.float64)
    turns = numpy_generator(seed, "turns").choice(len(names), size=count, p=shares / shares.sum())
    order, begin = np.empty(count, dtype=np.int64), 0
    for place, name in enumerate(names):
        mine = np.flatnonzero(turns == place)
        for time_through, start in enumerate(range(0, len(mine), sizes[name])):
            shuffled = numpy_generator(seed, "order", name, time_through).permutation(sizes[name])
            part = mine[start : start + sizes[name]]
            order[part] = begin + shuffled[: len(part)]
        begin += sizes[name]
    return order


@dataclass(frozen=True)
class BatchSchedule:
    """The sequences of all steps in reading order, and the indices of their style vectors; -1 for none."""

    rows: np.ndarray
    order: np.ndarray
    style: np.ndarray  # [sequences read, 2]: of the source, of the stretch

    def batch(self, step: int, size: int) -> tuple[Tensor, Tensor]:
        part = slice(step * size, (step + 1) * size)
        return torch.from_numpy(self.rows[self.order[part]]).long(), torch.from_numpy(self.style[part])


def schedule_batches(corpus: Corpus, settings: PretrainSettings, *, steps: int) -> BatchSchedule:
    count = steps * settings.batch
    order = order_sequences(
        {name: len(one) for name, one in corpus.sequences.items()},
        {one.name: one.weight for one in corpus.facts},
        count=count,
        seed=settings.seed,
    )
    sizes = [len(one) for one in corpus.sequences.values()]
    stretches = [int(one.max()) + 1 for one in corpus.stretches.values()]
    first = len(sizes) + np.concatenate([[0], np.cumsum(stretches)[:-1]])
    of_source = np.repeat(np.arange(len(sizes)), sizes)
    of_stretch = np.concatenate([begin + one for begin, one in zip(first, corpus.stretches.values(), strict=True)])
    style = np.stack([of_source, of_stretch], axis=1)[order].astype(np.int64)
    style[numpy_generator(settings.seed, "voiceless").random(count) < settings.voiceless] = -1
    return BatchSchedule(np.concatenate(list(corpus.sequences.values())), order, style)


def initial_state(corpus: Corpus, settings: PretrainSettings, *, steps: int) -> State:
    network = build_network(
        settings.network,
        vocabulary=corpus.tokenizer.get_vocab_size(),
        positions=settings.corpus.sequence,
        seed=settings.seed,
    )
    matrices = [one for one in network.parameters() if one.ndim > 1]
    others = [one for one in network.parameters() if one.ndim == 1]
    count = sum(1 + int(one.max()) + 1 for one in corpus.stretches.values())
    style = torch.nn.Parameter(torch.zeros(count, settings.network.width))
    groups = [{"params": matrices, "weight_decay": settings.decay}, {"params": [*others, style], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings.rate, betas=settings.betas, fused=True)
    return State(network, style, optimizer, steps)


def count_steps(corpus: Corpus, settings: PretrainSettings) -> int:
    """The requested number of steps, or as many as fit into the requested minutes."""
    if settings.steps is not None:
        return settings.steps
    trial = initial_state(corpus, settings, steps=TIMED_STEPS + 1)
    read = schedule_batches(corpus, settings, steps=TIMED_STEPS + 1)
    take_step(trial, *read.batch(0, settings.batch), settings)  # not timed: the first step includes setup
    started = time.perf_counter()
    for step in range(1, TIMED_STEPS + 1):
        take_step(trial, *read.batch(step, settings.batch), settings)
    return max(1, round(settings.minutes * 60 / ((time.perf_counter() - started) / TIMED_STEPS)))


def take_step(state: State, batch: Tensor, style: Tensor, settings: PretrainSettings) -> float:
    for group in state.optimizer.param_groups:
        group["lr"] = rate_at(state.step, state.steps, settings)
    added = state.style[style.clamp(min=0)] * (style >= 0)[..., None]
    loss = mean_loss(state.network, batch, added.sum(1))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(state.network.parameters(), settings.clip)
    state.optimizer.step()
    state.optimizer.zero_grad()
    state.step += 1
    state.tokens += int((batch[:, 1:] != PADDING).sum())
    return loss.item()


def train(state: State, corpus: Corpus, settings: PretrainSettings, *, folder: Path) -> Iterator[Progress]:
    """Take the remaining steps. Writes checkpoints on the way and at the end."""
    read = schedule_batches(corpus, settings, steps=state.steps)
    saved = time.perf_counter()
    while state.step < state.steps:
        started = time.perf_counter()
        loss = take_step(state, *read.batch(state.step, settings.batch), settings)
        now = time.perf_counter()
        state.seconds += now - started
        if settings.checkpoint_steps is not None:
            due = state.step % settings.checkpoint_steps == 0
        else:
            due = now - saved > 60 * settings.checkpoint_minutes
        if due or state.step == state.steps:
            save_checkpoint(state, folder / CHECKPOINT)
            saved = time.perf_counter()
        yield Progress(state.step, state.steps, loss, state.seconds)


def save_checkpoint(state: State, path: Path) -> None:
    """Write one file atomically: the tensors, and the counts as JSON in its header."""
    moments = state.optimizer.state_dict()["state"]
    tensors = {f"network/{name}": value.detach() for name, value in state.network.named_parameters()}
    tensors["voices"] = state.style.detach()
    tensors |= {f"optimizer/{place}/{name}": value for place, own in moments.items() for name, value in own.items()}
    counts = {name: getattr(state, name) for name in ("step", "steps", "seconds", "tokens")}
    write_whole(path, save(tensors, metadata={"counts": json.dumps(counts)}))


def load_checkpoint(path: Path, corpus: Corpus, settings: PretrainSettings) -> State:
    """The state of a run when the checkpoint was written."""
    try:
        with safe_open(path, framework="pt") as file:
            counts = json.loads(file.metadata()["counts"])
            # copied, because the file's memory is not aligned, and matrix products may round differently then
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except Exception as error:
        raise RunError(f"{path}: cannot be read: {error}. Remove it to start again.") from None
    state = initial_state(corpus, settings, steps=counts["steps"])
    with torch.no_grad():
        for name, value in state.network.named_parameters():
            value.copy_(tensors[f"network/{name}"])
        state.style.copy_(tensors["voices"])
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        kind, _, rest = key.partition("/")
        if kind == "optimizer":
            place, _, name = rest.partition("/")
            moments.setdefault(int(place), {})[name] = value
    groups = state.optimizer.state_dict()["param_groups"]
    state.optimizer.load_state_dict({"state": moments, "param_groups": groups})
    state.step, state.seconds, state.tokens = counts["step"], counts["seconds"], counts["tokens"]
    return state


@dataclass(frozen=True)
class LossTotal:
    """The sum of losses, in nats, over a number of tokens."""

    loss: float
    tokens: int

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss / self.tokens) if self.tokens else math.nan


def measure_documents(network: Any, documents: np.ndarray) -> LossTotal:
    """The total loss of documents that begin with END, each read alone."""
    lengths = (documents != PADDING).sum(1)
    loss, tokens = 0.0, 0
    with torch.no_grad():
        ordered = documents[np.argsort(lengths, kind="stable")]  # rows of similar length need little padding
        for start in range(0, len(ordered), MEASURED_ROWS):
            rows = ordered[start : start + MEASURED_ROWS]
            rows = rows[:, : int((rows != PADDING).sum(1).max())]
            count = int((rows[:, 1:] != PADDING).sum())
            if count:
                loss += float(mean_loss(network, torch.from_numpy(rows).long())) * count
                tokens += count
    return LossTotal(loss, tokens)
