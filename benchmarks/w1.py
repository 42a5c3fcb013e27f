"""Workload W1: the cohort engine against the frozen reference loop, alternating in one run.

    homespun bench w1

Both sides start from the same weights and use the same cohorts and batches; `max_abs_difference` is the largest
difference of their final weights. The loop is timed with one thread and with two; the better one counts. Shares are
relative to the GEMM peak (all cores) measured in the same run, in nominal FLOPs.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

import reference_w1 as reference
from alternating import Alternating
from rounds import Rounds, user_name

from homespun.core import seeds
from homespun.core.batches import plan_batches
from homespun.core.messages import ServerState
from homespun.core.method import Batch, Phase, Task, build
from homespun.system.method_loading import load_method

SEED = 0
SETTINGS = {
    "length": reference.LENGTH,
    "character_dim": reference.CHARACTER_DIM,
    "lstm_dim": reference.LSTM_DIM,
    "hidden_dim": reference.HIDDEN_DIM,
    "user_dim": reference.USER_DIM,
    "batch": reference.BATCH,
    "lr": reference.RATE,
    "local_epochs": 1,
}


class Cohort:
    """homespun's side."""

    def __init__(self, data: reference.Data, start: reference.Start) -> None:
        self.built = build(load_method("furl", SETTINGS, Task(classes=reference.CLASSES)), seed=SEED)
        batches = [self.batch(data, user) for user in range(reference.USERS)]  # a client encodes its data once
        self.rounds = Rounds(self.built, seed=SEED)
        self.rounds.begin(ServerState(0, start.weights, {}), batches, {"user.embedding": start.embeddings})

    @staticmethod
    def batch(data: reference.Data, user: int) -> Batch:
        return {
            "text": data.text[user].to(torch.uint8),
            "length": torch.full((reference.SAMPLES,), reference.LENGTH),
            "label": data.label[user],
        }

    def order(self, user: int) -> np.ndarray:
        """The order in which this side visits a user's samples, so that the other side can use the same."""
        generator = seeds.numpy_generator(SEED, "phases", self.rounds.state.round, user_name(user))
        phase = self.built.method.local.phases[0]
        assert isinstance(phase, Phase)
        return np.concatenate(plan_batches(reference.SAMPLES, phase, generator))


def measure(rounds: int = 5) -> dict[str, float | int]:
    data, start, model = reference.make_data(), reference.make_start(), reference.Model()
    ours, theirs = Cohort(data, start), start
    ours.rounds.round(list(reference.make_plan(10**6).cohort))  # workers start and warm up
    ours = Cohort(data, start)
    watch = Alternating()
    for round_number in range(rounds):
        cohort = list(reference.make_plan(round_number).cohort)
        plan = reference.Plan(cohort, np.stack([ours.order(user) for user in cohort]))
        theirs = watch.round(
            loop=partial(reference.run_round, model, theirs, data=data, plan=plan),
            cohort=partial(ours.rounds.round, cohort),
        )
    return watch.figures(
        clients=reference.COHORT,
        flop=reference.ROUND_FLOP,
        max_abs_difference=max(
            reference.max_abs_difference(theirs.weights, dict(ours.rounds.state.federated)),
            float((theirs.embeddings - torch.stack(ours.rounds.private("user.embedding"))).abs().max()),
        ),
    )
