"""A self-organizing map: a line of nodes that learns where embeddings are (Kohonen, 1990), and its server rule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Literal

import torch
from torch import Tensor

from homespun.core.messages import ServerState, Update
from homespun.core.server import ServerRule
from homespun.core.statistics import Best, Statistic, Sum
from homespun.core.tree import Tree

NARROWEST = 0.05  # radius at which a node has no neighbours left; its square must not underflow


def nearest(embedding: Tensor, nodes: Tensor) -> Tensor:
    """The number of the node that is nearest to each embedding: [..., d] and [..., k, d] -> [...]."""
    return (embedding[..., None, :] - nodes).square().sum(dim=-1).argmin(dim=-1)


def map_step(embedding: Tensor, nodes: Tensor, *, radius: Tensor, lr: float) -> Tensor:
    """Kohonen's step: the nearest node and its neighbours on the line move towards the embedding."""
    node = torch.arange(len(nodes), device=nodes.device)
    near = torch.exp(-(node - nearest(embedding, nodes)).square() / (2 * radius.square()))
    return lr * near[:, None] * (embedding - nodes)


def som_statistics(*, lr: float, step: Literal["best", "mean"]) -> dict[str, Statistic]:
    """What clients disclose for `SomRule`: the step that moves the map, of the client that fits it best or of all
    clients, and how many clients of each old node are at each new one."""

    def own_step(trained: Tree) -> Tensor:
        return map_step(trained["user.embedding"], trained["places.next"], radius=trained["places.radius"], lr=lr)

    def score(trained: Tree) -> float:
        """How well the map fits a client: minus the distance to the nearest node."""
        return -float((trained["user.embedding"] - trained["places.next"]).square().sum(dim=1).min().sqrt())

    def overlap(trained: Tree, _: torch.Generator) -> Tensor:
        embedding, counts = trained["user.embedding"], torch.zeros_like(trained["places.overlap"])
        counts[nearest(embedding, trained["places.map"]), nearest(embedding, trained["places.next"])] = 1
        return counts

    best = Best(own_step, score, "a step of the map and its score")
    mean = Sum(lambda trained, _: own_step(trained), "a step of the map")
    return {
        "places.next": best if step == "best" else mean,
        "places.overlap": Sum(overlap, "place on the old and the new map"),
    }


def smallest_count(noise: float) -> float:
    """A count below this is taken for zero, where counts have noise of this standard deviation."""
    return max(0.5, 3 * noise)


@dataclass(frozen=True)
class SomRule:
    """Trains the model by `rule` and learns the map beside it. Every `every` rounds the learned map replaces the map in
    use, and each of its nodes takes over the head of the old node that most of its members come from."""

    rule: ServerRule
    every: int
    radius: float
    halves: int

    def __call__(self, state: ServerState, update: Update) -> ServerState:
        model, places = self.rule(state, update), dict(state.server)
        if "places.next" in update.best:
            step = update.best["places.next"].value
        elif "places.next" in update.statistics:
            step = update.statistics["places.next"] / max(update.weight, 1.0)
        else:  # no client came
            step = torch.zeros_like(places["places.next"])
        places["places.next"] = places["places.next"] + step
        places["places.overlap"] = places["places.overlap"] + update.statistics["places.overlap"]
        places["places.radius"] = torch.full((), max(NARROWEST, self.radius * 0.5 ** (model.round / self.halves)))
        if model.round % self.every == 0:
            # the counts of `every` rounds have the noise of as many
            least = smallest_count(sqrt(self.every) * update.noise.get("places.overlap", 0.0))
            model = _carried_over(model, places["places.overlap"], least=least)
            places["places.map"] = places["places.next"].clone()
            places["places.overlap"] = torch.zeros_like(places["places.overlap"])
        return replace(model, server=places)


def _carried_over(model: ServerState, overlap: Tensor, *, least: float) -> ServerState:
    """A node without members keeps its own head."""
    old = torch.arange(len(overlap), device=overlap.device)
    source = torch.where(overlap.max(dim=0).values >= least, overlap.argmax(dim=0), old)
    moments = {name: value[source] if ".heads." in name else value for name, value in model.optimizer.items()}
    return replace(model, keyed={name: table[source] for name, table in model.keyed.items()}, optimizer=moments)
