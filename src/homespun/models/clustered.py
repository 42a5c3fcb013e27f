"""A network with a head for every cluster of users, and a probe that shows where a user's gradient points."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from homespun.core.method import Stackable
from homespun.core.tree import Tree

MODEL, HEADS, PROBE = "model.", "heads.", "probe."
REFERENCE = -1  # instead of a cluster: zeros, or the mean of all heads, moved by the probe


def key(name: str) -> str:
    """A parameter list takes no dots in its keys."""
    return name.replace(".", "/")


class Clustered(nn.Module):
    """A batch holds `cluster` [n] beside what the network reads; it is the same for all rows of a client.

    `model.*` are the network's parameters, of which the named ones are not used: `heads.*` [clusters, ...] or the
    reference take their place.
    """

    def __init__(self, model: nn.Module, names: Collection[str], clusters: int, *, at_zero: bool) -> None:
        super().__init__()
        self.model, self.names, self.at_zero = model, tuple(names), at_zero
        parameters = {name: value.detach() for name, value in model.named_parameters()}
        size = sum(parameters[name].numel() for name in names)
        self.heads = nn.ParameterDict(
            {key(name): parameters[name].repeat(clusters, *[1] * parameters[name].dim()) for name in names}
        )
        self.probe = nn.ParameterDict({key(name): torch.zeros_like(parameters[name]) for name in names})
        self.members = nn.Parameter(torch.zeros(clusters))  # how many users each of them has
        self.centroids = nn.Parameter(nn.functional.normalize(torch.randn(clusters, size), dim=1))

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        cluster = int(batch["cluster"][0]) if len(batch["cluster"]) else REFERENCE
        head = {}
        for name in self.names:
            table, probe = self.heads[key(name)], self.probe[key(name)]
            head[name] = self._reference(table, 0) + probe if cluster == REFERENCE else table[cluster]
        return functional_call(self.model, head, (_without(batch),))

    def _reference(self, table: Tensor, axis: int) -> Tensor:
        return torch.zeros_like(table.select(axis, 0)) if self.at_zero else table.mean(dim=axis)


class StackedClustered(Clustered):
    def stacked(self, parameters: Tree, batch: Mapping[str, Tensor]) -> Tensor:
        assert isinstance(self.model, Stackable)
        plain = {name[len(MODEL) :]: value for name, value in parameters.items() if name.startswith(MODEL)}
        cluster = batch["cluster"][:, 0]
        for name in self.names:
            table, probe = parameters[HEADS + key(name)], parameters[PROBE + key(name)]
            own = table.dim() > self.heads[key(name)].dim()
            if int(cluster[0]) == REFERENCE:  # then everybody's
                plain[name] = self._reference(table, 1 if own else 0) + probe
            else:
                plain[name] = (
                    table[torch.arange(len(cluster), device=cluster.device), cluster] if own else table[cluster]
                )
        return self.model.stacked(plain, _without(batch))


def _without(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: column for name, column in batch.items() if name != "cluster"}


def clustered(model: nn.Module, names: Collection[str], clusters: int, *, at_zero: bool) -> Clustered:
    return (StackedClustered if isinstance(model, Stackable) else Clustered)(model, names, clusters, at_zero=at_zero)
