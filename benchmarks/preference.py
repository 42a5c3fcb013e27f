"""What W2 and W2-text share: homespun's side, and the two sides alternating in one run."""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).parent))

import reference_w2 as reference
from alternating import Alternating
from rounds import Rounds, user_name

from homespun.core import seeds
from homespun.core.batches import plan_batches
from homespun.core.method import Phase, Task, build
from homespun.models.pretrained import TINY
from homespun.system.machine import cpu_cores
from homespun.system.method_loading import load_method

SEED = 0


def write_base(folder: Path) -> str:
    """The reference's random model as a base model that a method can name; its tokenizer is never used."""
    logging.disable_progress_bar()
    reference.make_model().save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, folder / name)
    return str(folder)


class Cohort:
    """homespun's side: the method `fedperc` on the default engine."""

    def __init__(self, data: reference.Data, start: reference.Start, base: str) -> None:
        settings = {
            "base_model": base,
            "length": reference.POSITIONS - 1,
            "local_steps": reference.STEPS,
            "batch": reference.BATCH,
            "lr": reference.RATE,
            "mu": reference.PROXIMAL,
            "prior": "none",
        }
        self.built = build(load_method("fedperc", settings, Task(contexts=len(start.context))), seed=SEED)
        self.rounds = Rounds(self.built, seed=SEED)
        self.data = [
            {"tokens": tokens.int(), "length": lengths, "context": contexts}
            for tokens, lengths, contexts in zip(data.tokens, data.lengths, data.contexts, strict=True)
        ]
        self.begin(start)

    def begin(self, start: reference.Start) -> None:
        fresh = self.built.start()
        state = replace(fresh, keyed={"context.table": start.context[:, None].clone()})
        self.rounds.begin(state, self.data, {"personal.embedding": start.personal[:, None]})

    def plan(self, cohort: Sequence[int]) -> reference.Plan:
        """The batches that this side will draw, so that the other side can use the same."""
        phase = self.built.method.local.phases[0]
        assert isinstance(phase, Phase)
        batches = [
            plan_batches(
                len(self.data[user]["length"]),
                phase,
                seeds.numpy_generator(SEED, "phases", self.rounds.state.round, user_name(user)),
            )
            for user in cohort
        ]
        return reference.Plan(cohort, batches)

    def reached(self) -> reference.Start:
        personal = torch.cat(self.rounds.private("personal.embedding"))
        return reference.Start(self.rounds.state.keyed["context.table"][:, 0], personal)


def compare(data: reference.Data, start: reference.Start, *, rounds: int, clients: int) -> dict[str, float | int]:
    """Trains both sides from the same weights, with the same cohorts and batches."""
    model, theirs = reference.make_model(), start
    folder = tempfile.TemporaryDirectory(prefix="homespun-bench-")
    ours = Cohort(data, start, write_base(Path(folder.name)))
    ours.rounds.round(reference.make_plan(10**6, data, clients=min(clients, cpu_cores())).cohort)  # workers warm up
    ours.begin(start)
    watch, flops = Alternating(), []
    for round_number in range(rounds):
        plan = ours.plan(reference.make_plan(round_number, data, clients=clients).cohort)
        theirs = watch.round(
            loop=partial(reference.run_round, model, theirs, data=data, plan=plan),
            cohort=partial(ours.rounds.round, plan.cohort),
        )
        flops.append(reference.plan_flop(data, plan))
    folder.cleanup()
    difference = reference.max_abs_difference(theirs, ours.reached())
    return watch.figures(clients=clients, flop=statistics.mean(flops), max_abs_difference=difference)
