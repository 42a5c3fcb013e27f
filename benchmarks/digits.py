"""What W3 and W3-clipped share: homespun's side, and the two sides alternating in one run."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

import reference_w3 as reference
from alternating import Alternating
from rounds import Rounds

from homespun.core.errors import HomespunError
from homespun.core.messages import Broadcast, Update
from homespun.core.method import Task, build
from homespun.core.transforms import NO_TRANSFORMS, Transforms
from homespun.privacy.dp import DpMechanism
from homespun.privacy.mechanism import Clip, in_types_of
from homespun.system.method_loading import load_method

SEED = 0
SETTINGS = {
    "assignment": "type",
    "embedding_dim": reference.EMBEDDING_DIM,
    "embedding_lr": reference.EMBEDDING_RATE,
    "server": "fedavg",
    "server_lr": reference.SERVER_RATE,
}
TASK = Task(classes=2, population=reference.USERS, contexts=reference.KINDS, image=(reference.SIDE, reference.SIDE))
# The order of float32 sums differs; a wrong step would differ by a hundred times as much.
AGREEMENT = 1e-5


class ClipOnly(DpMechanism):
    """Clips without adding noise."""

    def on_server(self, total: Update, broadcast: Broadcast) -> Update:
        return in_types_of(broadcast, total)


class Cohort:
    """homespun's side: the method `fedembed` on the default engine."""

    def __init__(self, data: reference.Data, start: reference.Start, clip: float | None) -> None:
        self.built = build(load_method("fedembed", SETTINGS, TASK), seed=SEED)
        transforms = NO_TRANSFORMS if clip is None else Transforms((ClipOnly(Clip({"*": clip})),))
        self.rounds = Rounds(self.built, seed=SEED, transforms=transforms)
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
        state = replace(self.built.start(), federated=shared, keyed=heads)
        self.rounds.begin(state, self.data, {"user.embedding": start.embeddings})

    def weights(self) -> reference.Weights:
        state = self.rounds.state
        heads = {
            f"heads.{head}.{part}": state.keyed[f"heads.{part}"][head]
            for head in range(reference.KINDS)
            for part in ("weight", "bias")
        }
        return {**state.federated, **heads}


def compare(*, rounds: int, clip: float | None) -> dict[str, float | int]:
    """Both sides from the same start, with the same cohorts; each takes its own steps.

    Shared parameters must agree. Embeddings need not: the first step of Adam has the length of its rate whatever the
    gradient, so where the gradient is nearly zero a rounding error decides the direction of the step.
    """
    data, start, model = reference.make_data(), reference.make_start(), reference.Model()
    ours, theirs = Cohort(data, start, clip), start
    ours.rounds.round(reference.make_cohort(10**6))  # workers start and warm up
    ours.begin(start)
    reference.run_round(model, start, data=data, cohort=[0, 1], clip=clip)  # so does the loop
    watch = Alternating()
    for round_number in range(rounds):
        cohort = reference.make_cohort(round_number)
        theirs = watch.round(
            loop=partial(reference.run_round, model, theirs, data=data, cohort=cohort, clip=clip),
            cohort=partial(ours.rounds.round, cohort),
        )
    difference = reference.max_abs_difference(theirs.weights, ours.weights())
    if not difference < AGREEMENT:
        raise HomespunError(f"the two sides are {difference:.2g} apart, expected less than {AGREEMENT:g}")
    apart = (theirs.embeddings - torch.stack(ours.rounds.private("user.embedding"))).abs()
    return {
        **watch.figures(clients=reference.COHORT, flop=reference.ROUND_FLOP, max_abs_difference=difference),
        "embedding_mean_abs_difference": float(apart.mean()),
    }
