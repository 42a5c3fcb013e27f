"""Where embeddings are: the nearest of some places, and a line of nodes that learns where to be (Kohonen, 1990)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import torch
from torch import Tensor

from homespun.core.messages import ServerState, Update
from homespun.core.server import ServerRule
from homespun.core.tree import Tree


def nearest(embedding: Tensor, places: Tensor) -> Tensor:
    """The number of the place that is nearest to each embedding: [..., d] and [..., k, d] -> [...]."""
    return (embedding[..., None, :] - places).square().sum(dim=-1).argmin(dim=-1)


def map_step(embedding: Tensor, nodes: Tensor, *, radius: Tensor, rate: float) -> Tensor:
    """Kohonen's step: the nearest node and its neighbours on the line move towards the embedding."""
    place = torch.arange(len(nodes), device=nodes.device)
    near = torch.exp(-(place - nearest(embedding, nodes)).square() / (2 * radius.square()))
    return rate * near[:, None] * (embedding - nodes)


def somebody(noise: float) -> float:
    """From which count on somebody is there, where the count has noise of this deviation."""
    return max(0.5, 3 * noise)


NARROWEST = 0.05  # radius at which a node has no neighbours left; its square must not become nothing


@dataclass(frozen=True)
class MapServer:
    """Learns the map beside the model; every so often the learned map is put to use, and each of its clusters goes on
    with the head of the old cluster that most of its members come from."""

    rule: ServerRule
    every: int
    radius: float
    halves: int

    def __call__(self, state: ServerState, update: Update) -> ServerState:
        places = {name: value for name, value in state.federated.items() if name.startswith("places.")}
        model = self.rule(
            replace(state, federated=_without(state.federated, places)),
            replace(update, federated=_without(update.federated, places)),
        )
        if update.elected is not None:
            step = update.elected.steps["places.next"]
        else:
            step = update.federated["places.next"] / max(update.weight, 1.0)
        places["places.next"] = places["places.next"] + step
        places["places.overlap"] = places["places.overlap"] + update.federated["places.overlap"]
        places["places.radius"] = torch.full((), max(NARROWEST, self.radius * 0.5 ** (model.round / self.halves)))
        if model.round % self.every == 0:
            # counts of so many rounds, and the noise of as many
            least = somebody(sqrt(self.every) * update.noise.get("places.overlap", 0.0))
            model = _carried_over(model, places["places.overlap"], least=least)
            places["places.map"] = places["places.next"].clone()
            places["places.overlap"] = torch.zeros_like(places["places.overlap"])
        return replace(model, federated={**model.federated, **places})


def _carried_over(model: ServerState, overlap: Tensor, *, least: float) -> ServerState:
    """A cluster to which nobody came keeps its own head."""
    old = torch.arange(len(overlap), device=overlap.device)
    source = torch.where(overlap.max(dim=0).values >= least, overlap.argmax(dim=0), old)
    moments = {name: value[source] if ".heads." in name else value for name, value in model.optimizer.items()}
    return replace(model, keyed={name: table[source] for name, table in model.keyed.items()}, optimizer=moments)


def _without(tree: Tree, names: Tree) -> Tree:
    return {name: value for name, value in tree.items() if name not in names}
