"""A network with personal copies of some parameters. The forward pass uses the copies."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor, nn
from torch.func import functional_call

from homespun.core.method import Stackable
from homespun.core.tree import Tree

MODEL, OWN = "model.", "own."


def own_name(name: str) -> str:
    """The name of a parameter's copy. `nn.ParameterDict` allows no dots in its keys."""
    return OWN + name.replace(".", "/")


class WithCopies(nn.Module):
    """`model.*` are the network's parameters; `own.*` are the copies that replace the named ones."""

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
    @property
    def takes_shared_weights(self) -> bool:
        return bool(getattr(self.model, "takes_shared_weights", False))

    def stacked(self, parameters: Tree, batch: Mapping[str, Tensor]) -> Tensor:
        assert isinstance(self.model, Stackable)
        return self.model.stacked(without_copies(parameters, self.names), dict(batch))


def with_copies(model: nn.Module, names: Collection[str]) -> WithCopies:
    return (StackedWithCopies if isinstance(model, Stackable) else WithCopies)(model, names)


def without_copies(parameters: Tree, names: Collection[str]) -> dict[str, Tensor]:
    """The network's parameters under their original names, with the copies in place."""
    plain = {name[len(MODEL) :]: value for name, value in parameters.items() if name.startswith(MODEL)}
    return {**plain, **{name: parameters[own_name(name)] for name in names}}
