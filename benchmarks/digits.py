"""What W3 and W3-clipped share: homespun's side, and the two sides alternating in one run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

import reference_w3 as reference
from alternating import Alternating

from homespun.core.errors import HomespunError
from homespun.core.method import Task, build, load_method
from homespun.engines.cohort import CohortEngine
from homespun.engines.engine import Client
from homespun.privacy.guard import Guard
from homespun.privacy.mechanism import Clip, in_types_of

SEED = 0
SETTINGS = {
    "assignment": "type",
    "embedding_dim": reference.EMBEDDING_DIM,
    "embedding_rate": reference.EMBEDDING_RATE,
    "server": "fedavg",
    "server_rate": reference.SERVER_RATE,
}
TASK = Task(classes=2, population=reference.USERS, contexts=reference.KINDS, image=(reference.SIDE, reference.SIDE))
# Sums in another order, in float32; a step that was wrong would differ by a hundred times as much.
AGREEMENT = 1e-5


def user_name(user: int) -> str:
    return f"user-{user:04d}"


class Cohort:
    """homespun's side: the method `fedembed` on the default engine."""

    def __init__(self, data: reference.Data, start: reference.Start, clip: float | None) -> None:
        self.built = build(load_method("fedembed", SETTINGS, TASK), seed=SEED)
        guard = None if clip is None else Guard(Clip({"*": clip}))
        self.engine = CohortEngine(self.built, SEED, guard=guard)
        self.data = [
            {
                "image": data.image[user],
                "label": data.label[user],
                "kind": data.kind[user],
                "group": data.head[user].expand(reference.SAMPLES).clone(),
            }
            for user in range(reference.USERS)
        ]
        self.begin(start)

    def begin(self, start: reference.Start) -> None:
        heads = {
            f"heads.{part}": torch.stack([start.weights[f"heads.{head}.{part}"] for head in range(reference.KINDS)])
            for part in ("weight", "bias")
        }
        shared = {name: value for name, value in start.weights.items() if not name.startswith("heads.")}
        self.state = replace(self.built.start(), federated=shared, keyed=heads)
        self.embeddings = start.embeddings.clone()

    def round(self, cohort: Sequence[int]) -> None:
        clients = [
            Client(user_name(user), private={"user.embedding": self.embeddings[user]}, data=self.data[user])
            for user in cohort
        ]
        broadcast = self.state.broadcast()
        outcome = self.engine.work(broadcast, clients)
        self.state = self.built.method.server(self.state, in_types_of(broadcast, outcome.update))
        for user in cohort:
            self.embeddings[user] = outcome.private[user_name(user)]["user.embedding"]

    def weights(self) -> reference.Weights:
        heads = {
            f"heads.{head}.{part}": self.state.keyed[f"heads.{part}"][head]
            for head in range(reference.KINDS)
            for part in ("weight", "bias")
        }
        return {**self.state.federated, **heads}


def compare(*, rounds: int, clip: float | None) -> dict[str, float | int]:
    """Both sides from the same start, with the same cohorts; each takes its own steps.

    They must agree in what is shared. In an embedding they need not: the first step of Adam is as long as its rate
    whatever the gradient, so where that is nearly zero a rounding error decides the step's direction.
    """
    data, start, model = reference.make_data(), reference.make_start(), reference.Model()
    ours, theirs = Cohort(data, start, clip), start
    ours.round(reference.make_cohort(10**6))  # workers start and warm up
    ours.begin(start)
    reference.run_round(model, start, data=data, cohort=[0, 1], clip=clip)  # so does the loop
    watch = Alternating()
    for round_number in range(rounds):
        cohort = reference.make_cohort(round_number)
        theirs = watch.round(
            loop=partial(reference.run_round, model, theirs, data=data, cohort=cohort, clip=clip),
            cohort=partial(ours.round, cohort),
        )
    difference = reference.max_abs_difference(theirs.weights, ours.weights())
    if not difference < AGREEMENT:
        raise HomespunError(f"the two sides are {difference:.2g} apart, expected less than {AGREEMENT:g}")
    apart = (theirs.embeddings - ours.embeddings).abs()
    return {
        **watch.figures(clients=reference.COHORT, flop=reference.ROUND_FLOP, max_abs_difference=difference),
        "embedding_mean_abs_difference": float(apart.mean()),
    }
