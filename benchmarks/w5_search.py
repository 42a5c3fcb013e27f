"""Workload W5-search: one user's search at home among 126 settings, against one after the other in plain torch.

    homespun bench w5-search --set data=gitter.jsonl.gz --set base=FOLDER

Both sides start from the same weights, use the same batches and stop a setting when it does not improve on the same
held-out texts. The reference is timed with one thread and with two; the better one counts. homespun's side shares the
stacks of settings among all cores, as it does for a user who is personalized alone. It leaves out the 12 settings that
compute the same as another one (an adapter that starts at zero). Without a pre-trained `base`, weights are random.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

import reference_w5 as reference
import w5
from alternating import timed

from homespun.core import seeds
from homespun.core.messages import ServerState
from homespun.core.method import Batch, BuiltMethod, Task, build
from homespun.core.personalize import Home, Personalization
from homespun.core.roles import Role
from homespun.core.tree import Tree
from homespun.data.federation import Examples
from homespun.engines.client import Client
from homespun.engines.keys import BatchPlanner
from homespun.engines.stacked import train_clients
from homespun.methods._choices_at_home import ChoicesAtHome, split_rows
from homespun.methods._own_words_at_home import Choice
from homespun.models.next_word import NextWord, places_in
from homespun.system.machine import cpu_cores
from homespun.system.method_loading import load_method

SEED, USER = 0, "user"
GRID: dict[str, Any] = {
    "personalize_lrs": (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0),
    "adapter_scales": (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0),
    "adapters": ((960,), (128, 256, 128), (256, 512, 256)),
    "personalize_epochs": 10,
    "own_start": "spelling",  # as in the paper, which the reference follows
}


def measure(rounds: int = 1, data: str = "", base: str = "", texts: int = 100) -> dict[str, float | int]:
    """`data` is a file of texts by user, `base` the folder of a pre-trained model; `texts` of one user are used."""
    every = [some for some in w5.texts_of_users(data) if len(some) >= texts]
    if not every:
        raise SystemExit(f"w5-search: no user with {texts} texts")
    own = every[-1][:texts]  # the user nearest to that number
    with tempfile.TemporaryDirectory() as folder:
        name = base or str(Path(folder) / "model")
        if not base:
            w5.save_base(Path(name), w5.make_vocabulary(text for some in every for text in some))
        settings = {"base_model": name, "batch": reference.BATCH, "length": reference.LENGTH, **GRID}
        return _measure(
            rounds, build(load_method("oov_expansion", settings, Task(population=1)), seed=SEED), tuple(own)
        )


class Search(Personalization):
    """homespun's side, which remembers what it saw and found."""

    def __init__(self, search: ChoicesAtHome[Any]) -> None:
        self.inner = search

    def __call__(self, home: Home) -> Tree:
        self.home, self.best = home, self.inner.search(home)
        return self.best.parameters


def _measure(rounds: int, built: BuiltMethod, texts: tuple[str, ...]) -> dict[str, float | int]:
    assert isinstance(built.method.personalize, ChoicesAtHome)
    search = Search(built.method.personalize)
    built = replace(built, method=replace(built.method, personalize=search))
    client = Client(USER, {}, built.method.model.encode(Examples(texts)))
    broadcast = ServerState(0, built.partition.select(built.initial, Role.FEDERATED), {}).broadcast()
    client = replace(client, private=built.method.model.new_private(torch.Generator(), broadcast))

    def ours() -> None:
        train_clients(built, broadcast, [client], mode="personalize", seed=SEED, threads=cpu_cores())

    torch.set_num_threads(1)
    ours()
    grid = every_choice()
    task = reference_task(search, built, client, grid=grid)
    loop_s: dict[int, list[float]] = {1: [], 2: []}
    ours_s: list[float] = []
    for _ in range(rounds):
        for threads, seconds in loop_s.items():
            torch.set_num_threads(threads)
            took, expected = timed(partial(reference.search, **task))
            seconds.append(took)
        torch.set_num_threads(1)
        ours_s.append(timed(ours)[0])
    by_threads = {threads: statistics.median(seconds) for threads, seconds in loop_s.items()}
    threads = min(by_threads, key=lambda number: by_threads[number])
    place, score, epochs = expected
    return {
        "settings": len(grid),
        "texts": client.examples,
        "own_words": len(task["lexicon"]),
        "epochs": epochs,
        "loop_s": by_threads[threads],
        "loop_threads": threads,
        "search_s": statistics.median(ours_s),
        "ratio": by_threads[threads] / statistics.median(ours_s),
        "loop_winner": place,
        "winner": grid.index(search.inner.choices[search.best.place]),
        "loop_emr3": score[0],
        "emr3": search.best.score[0],
        "loss_difference": abs(score[1] - search.best.score[1]),
    }


def every_choice() -> list[Choice]:
    return [Choice(*one) for one in product(GRID["personalize_lrs"], GRID["adapter_scales"], GRID["adapters"])]


def reference_task(search: Search, built: BuiltMethod, client: Client, *, grid: Sequence[Choice]) -> dict[str, Any]:
    """The same search for the reference: its start, its texts, and the batches of each epoch."""
    home, inner, model = search.home, search.inner, built.model
    assert isinstance(model, NextWord)
    generator = seeds.torch_generator(SEED, "personalize", 0, USER)
    fit, check = split_rows(client.data, inner.validation_share, generator=generator)
    starts = inner.starts(replace(home, generator=generator), fit, grid)
    lexicon = starts[0]["own.lexicon"]
    planner = BatchPlanner(seed=SEED, mode="personalize", round=0, user=USER)
    phase = inner.phase(grid[0])

    def texts(data: Batch) -> reference.Texts:
        return reference.Texts(data["words"].long(), data["length"], places_in(lexicon, data["spelling"]))

    return {
        "settings": [
            reference.Setting(choice.lr, choice.hidden, adapter_weights(start["own.adapter"], choice.hidden))
            for choice, start in zip(grid, starts, strict=True)
        ],
        "start": {w5.their_name(name): home.parameters[name] for name in built.partition.names(Role.FEDERATED)},
        "lexicon": lexicon.long(),
        "fit": texts(fit),
        "check": texts(check),
        "plans": [planner.plan(len(fit["length"]), phase) for _ in range(inner.epochs)],
        "spelling": model.spelling.long(),
    }


def adapter_weights(flat: Tensor, hidden: Sequence[int]) -> dict[str, Tensor]:
    """The parameters of the reference's adapter, which are in the same order here."""
    module, place, found = reference.Adapter(hidden), 0, {}
    for name, value in module.named_parameters():
        found[name] = flat[place : place + value.numel()].view_as(value)
        place += value.numel()
    return found
