"""A network with a head for every cluster of users."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from homespun.core.method import Stackable
from homespun.core.tree import Tree

MODEL, HEADS = "model.", "heads."


def key(name: str) -> str:
    """A parameter list takes no dots in its keys."""
    return name.replace(".", "/")


class Clustered(nn.Module):
    """A batch holds `cluster` [n] beside what the network reads; it is the same for all rows of a client.

    `model.*` are the network's parameters, of which the named ones are not used: a row of `heads.*` [clusters, ...]
    takes their place. `centroids`, `members` and `user.gradient` say who is in which cluster; no output depends on
    them.
    """

    def __init__(self, model: nn.Module, names: Collection[str], clusters: int) -> None:
        super().__init__()
        self.model, self.names = model, tuple(names)
        parameters = {name: value.detach() for name, value in model.named_parameters()}
        size = sum(parameters[name].numel() for name in names)
        self.heads = nn.ParameterDict(
            {key(name): parameters[name].repeat(clusters, *[1] * parameters[name].dim()) for name in names}
        )
        self.members = nn.Parameter(torch.zeros(clusters))
        self.centroids = nn.Parameter(nn.functional.normalize(torch.randn(clusters, size), dim=1))
        self.user = nn.ParameterDict({"gradient": torch.zeros(size)})

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        cluster = int(batch["cluster"][0]) if len(batch["cluster"]) else 0
        head = {name: self.heads[key(name)][cluster] for name in self.names}
        return functional_call(self.model, head, (_without(batch),))


class StackedClustered(Clustered):
    @property
    def takes_shared_weights(self) -> bool:
        return bool(getattr(self.model, "takes_shared_weights", False))

    def stacked(self, parameters: Tree, batch: Mapping[str, Tensor]) -> Tensor:
        assert isinstance(self.model, Stackable)
        plain = {name[len(MODEL) :]: value for name, value in parameters.items() if name.startswith(MODEL)}
        cluster = batch["cluster"][:, 0]
        for name in self.names:
            table = parameters[HEADS + key(name)]
            own = table.dim() > self.heads[key(name)].dim()  # a table for each client
            rows = (torch.arange(len(cluster), device=cluster.device), cluster) if own else (cluster,)
            plain[name] = table[rows]
        return self.model.stacked(plain, _without(batch))


def _without(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: column for name, column in batch.items() if name != "cluster"}


def clustered(model: nn.Module, names: Collection[str], clusters: int) -> Clustered:
    return (StackedClustered if isinstance(model, Stackable) else Clustered)(model, names, clusters)
