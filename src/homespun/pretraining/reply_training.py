"""Trains a reply model centrally: stage 1 of FedNLG.

The pairs of a step and its dropout are functions of the seed and the step's number, so a checkpoint needs the weights,
the optimizer's moments and the number of steps, but no generator state. Sequences are packed: no step is computed for
padding, and no logit where there is no word to predict.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from homespun.core import draws
from homespun.core.seeds import derive, numpy_generator
from homespun.core.settings import Paper, Settings
from homespun.decoding.sampling import greedy
from homespun.evaluation.bleu import bleu_counts, corpus_bleu
from homespun.models.reply_decoder import ReplyDecoder
from homespun.models.reply_model import Sizes, untrained
from homespun.models.seq2seq import Seq2Seq
from homespun.models.vocabulary import PADDING, SPECIAL
from homespun.pretraining.reply_pairs import PairCorpus, Pairs
from homespun.system.disk import write_whole

CHECKPOINT = "checkpoint.safetensors"
ROWS = 256  # pairs computed at once; a batch is several of them
LARGEST_LOSS = 700.0  # of a word; a perplexity beyond it does not fit a float


class ReplyPretrainSettings(Settings):
    """How a reply model is pre-trained."""

    words: Annotated[int, Field(gt=SPECIAL), Paper("at most 30,000")] = 30_000
    """Size of the vocabulary: the most frequent words of the training part, and four numbers for padding, begin, end
    and unknown words."""
    sizes: Sizes = Sizes()
    """The network's size."""
    epochs: Annotated[PositiveInt, Paper(60)] = 10
    """Passes over the training pairs."""
    batch: Annotated[PositiveInt, Paper(1024)] = 256
    """Pairs in a step."""
    lr: Annotated[PositiveFloat, Paper(0.01)] = 0.003
    """Learning rate of Adam at the first step; it falls linearly to `final_lr` of this."""
    final_lr: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share of `lr` that is left at the last step. 1: constant."""
    dropout: Annotated[float, Field(ge=0, lt=1), Paper(0.2)] = 0.2
    """Share of the inputs of each layer that dropout sets to zero."""
    clip_norm: Annotated[PositiveFloat, Paper(5)] = 5.0
    """Maximum L2 norm of a step's gradient."""
    choose_by: Annotated[Literal["bleu", "perplexity"], Paper("bleu")] = "perplexity"
    """The metric on held-out pairs that chooses the epoch whose weights are kept."""
    dev_share: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Share of the conversations that are held out for evaluation."""
    dev_replies: PositiveInt = 500
    """Held-out prompts whose greedy replies are scored with BLEU after each epoch."""
    seed: NonNegativeInt = 0
    """All random draws derive from it."""
    checkpoint_minutes: NonNegativeFloat = 3.0
    """Minutes between checkpoints."""
    threads: PositiveInt | None = None
    """Compute threads. Not set: one per CPU core. The last bits of the weights depend on it."""


@dataclass(frozen=True)
class EpochScores:
    """Held-out scores after an epoch."""

    epoch: int
    perplexity: float
    bleu: float  # BLEU-4 with add-one smoothing, as a fraction


@dataclass(frozen=True)
class StepProgress:
    step: int
    steps: int
    loss: float
    epoch: EpochScores | None = None  # set after the last step of an epoch


@dataclass
class TrainingState:
    """The state between steps. Steps modify it in place, because copying all weights would take time."""

    network: Seq2Seq
    optimizer: torch.optim.Adam
    step: int = 0
    seconds: float = 0.0
    history: list[EpochScores] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)  # weights of the best epoch


def steps_per_epoch(corpus: PairCorpus, settings: ReplyPretrainSettings) -> int:
    return math.ceil(len(corpus.train) / settings.batch)


def initial_state(corpus: PairCorpus, settings: ReplyPretrainSettings) -> TrainingState:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(settings.seed, "initial parameters") >> 1)
        network = untrained(corpus.vocabulary, settings.sizes).build(dropout=settings.dropout)
    for value in network.parameters():
        # Otherwise the two biases of a layer, which have the same gradient, would share one `grad`: autograd would add
        # to it twice, and clipping would scale it twice.
        value.grad = torch.zeros_like(value)
    return TrainingState(network, torch.optim.Adam(network.parameters(), lr=settings.lr, fused=True))


def train(
    state: TrainingState, corpus: PairCorpus, settings: ReplyPretrainSettings, *, folder: Path
) -> Iterator[StepProgress]:
    """Train the remaining steps, with checkpoints in `folder`."""
    per_epoch = steps_per_epoch(corpus, settings)
    total, saved = per_epoch * settings.epochs, time.monotonic()
    while state.step < total:
        started = time.monotonic()
        epoch, number = divmod(state.step, per_epoch)
        order = numpy_generator(settings.seed, "order", epoch).permutation(len(corpus.train))
        rows = order[number * settings.batch : (number + 1) * settings.batch]
        loss = take_step(state, corpus.train, rows, settings=settings, progress=state.step / total)
        state.step += 1
        scores = None
        if state.step % per_epoch == 0:
            scores = _finish_epoch(state, corpus, settings)
        state.seconds += time.monotonic() - started
        if scores or time.monotonic() - saved > 60 * settings.checkpoint_minutes:
            save_checkpoint(state, folder / CHECKPOINT)
            saved = time.monotonic()
        yield StepProgress(state.step, total, loss, scores)


def take_step(
    state: TrainingState, pairs: Pairs, rows: np.ndarray, *, settings: ReplyPretrainSettings, progress: float
) -> float:
    """One step of Adam on these pairs; returns the mean loss per word."""
    named = dict(state.network.named_parameters())
    words = int(pairs.length[rows].sum())
    key = draws.step_key(settings.seed, "pretrain", 0, "", phase=0, step=state.step)
    total = 0.0
    state.optimizer.zero_grad(set_to_none=False)  # see `initial_state`
    for start in range(0, len(rows), ROWS):
        some = rows[start : start + ROWS]
        batch = draws.add_keys(pairs.batch(some), [key], torch.from_numpy(some))
        parameters = {name: value[None] for name, value in named.items()}
        loss = state.network.stacked(parameters, {name: one[None] for name, one in trim(batch).items()}).sum() / words
        loss.backward()
        total += float(loss.detach())
    torch.nn.utils.clip_grad_norm_(named.values(), settings.clip_norm)
    for group in state.optimizer.param_groups:
        group["lr"] = settings.lr * (1 - progress * (1 - settings.final_lr))
    state.optimizer.step()
    return total


def trim(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without columns in which all rows are padding."""
    widths = {"question": int(batch["question_length"].max()), "reply": int((batch["reply"] != PADDING).sum(1).max())}
    return {name: one[:, : widths[name]] if name in widths else one for name, one in batch.items()}


def _finish_epoch(state: TrainingState, corpus: PairCorpus, settings: ReplyPretrainSettings) -> EpochScores:
    epoch = state.step // steps_per_epoch(corpus, settings)
    scores = evaluate_network(state.network, corpus, epoch=epoch, replies=settings.dev_replies)
    state.history.append(scores)
    if best_epoch(state.history, settings) is scores:
        state.best = {name: value.detach().clone() for name, value in state.network.named_parameters()}
    return scores


def best_epoch(history: list[EpochScores], settings: ReplyPretrainSettings) -> EpochScores:
    """The best epoch; of several equal ones, the first. A perplexity of NaN is the worst."""
    if settings.choose_by == "bleu":
        return max(history, key=lambda one: one.bleu)
    return min(history, key=lambda one: math.inf if math.isnan(one.perplexity) else one.perplexity)


@torch.no_grad()
def evaluate_network(network: Seq2Seq, corpus: PairCorpus, *, epoch: int, replies: int) -> EpochScores:
    """Perplexity of all held-out replies, and BLEU of greedy replies to some held-out prompts."""
    parameters = {name: value.detach()[None] for name, value in network.named_parameters()}
    total, dev = 0.0, corpus.dev
    for start in range(0, len(dev), ROWS):
        rows = np.arange(start, min(start + ROWS, len(dev)))
        batch = {name: one[None] for name, one in trim(dev.batch(rows)).items()}
        total += float(network.stacked(parameters, batch).sum())
    some = np.unique(np.linspace(0, len(dev) - 1, min(replies, len(dev))).round().astype(np.int64))
    decoder = ReplyDecoder({name: value[0] for name, value in parameters.items()}, layers=len(network.encoder))
    questions = [row[:size].tolist() for row, size in zip(dev.question[some], dev.question_length[some], strict=True)]
    written = greedy(decoder, decoder.start(questions), max_length=dev.reply.shape[1])
    spell = corpus.vocabulary.spell
    counts = [
        bleu_counts(spell(one.tokens), spell(row[row != PADDING].tolist()))
        for one, row in zip(written, dev.reply[some], strict=True)
    ]
    bleu = float(corpus_bleu(np.sum(counts, axis=0), smoothing="add-one"))
    mean = total / max(int(dev.length.sum()), 1)
    return EpochScores(epoch, math.inf if mean > LARGEST_LOSS else math.exp(mean), bleu)


def save_checkpoint(state: TrainingState, path: Path) -> None:
    tensors = {f"network/{name}": value.detach() for name, value in state.network.named_parameters()}
    tensors |= {f"best/{name}": value for name, value in state.best.items()}
    for place, moments in state.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{place}/{name}": value for name, value in moments.items()}
    history = json.dumps([asdict(one) for one in state.history])
    metadata = {"step": str(state.step), "seconds": repr(state.seconds), "history": history}
    write_whole(path, save(tensors, metadata=metadata))


def load_checkpoint(path: Path, corpus: PairCorpus, settings: ReplyPretrainSettings) -> TrainingState:
    state = initial_state(corpus, settings)
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
    state.history = [EpochScores(**one) for one in json.loads(metadata["history"])]
    return state
