"""A network of which some parameters also exist as copies, which are the ones that are used."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor, nn
from torch.func import functional_call

from homespun.core.method import Stackable
from homespun.core.tree import Tree

MODEL, OWN = "model.", "own."


def own_name(name: str) -> str:
    """Where the copy of a parameter is; a parameter list takes no dots in its keys."""
    return OWN + name.replace(".", "/")


class WithCopies(nn.Module):
    """`model.*` are the network's parameters, `own.*` the copies of the named ones, which take their place."""

    def __init__(self, model: nn.Module, names: Collection[str]) -> None:
        super().__init__()
        self.model = model
        parameters = dict(model.named_parameters())
        self.names = tuple(names)
        self.own = nn.ParameterDict({own_name(name)[len(OWN) :]: parameters[name].detach().clone() for name in names})

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        copies = {name: self.own[own_name(name)[len(OWN) :]] for name in self.names}
        return functional_call(self.model, copies, (batch,))


class StackedWithCopies(WithCopies):
    def stacked(self, parameters: Tree, batch: Mapping[str, Tensor]) -> Tensor:
        assert isinstance(self.model, Stackable)
        return self.model.stacked(without_copies(parameters, self.names), dict(batch))


def with_copies(model: nn.Module, names: Collection[str]) -> WithCopies:
    return (StackedWithCopies if isinstance(model, Stackable) else WithCopies)(model, names)


def without_copies(parameters: Tree, names: Collection[str]) -> dict[str, Tensor]:
    """The network's parameters by their own names, with the copies in their places."""
    plain = {name[len(MODEL) :]: value for name, value in parameters.items() if name.startswith(MODEL)}
    return {**plain, **{name: parameters[own_name(name)] for name in names}}
