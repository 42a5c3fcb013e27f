"""Personalization: from a home to private state. Nothing of it is sent.

    GradientSteps(phases)             gradient steps on the user's own examples
    Generated(generate)               one pass of a generator over them, without any gradient
    Generated(generate, phases)       the generator, then gradient steps

A method may bring another one: a subclass of `Personalization` whose `__call__` takes a `Home`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from homespun.core.tree import Tree


@dataclass(frozen=True)
class Home:
    """What a client has when it personalizes: its examples, all parameters as it sees them, and an engine's help."""

    user: str
    parameters: Tree  # shared, frozen and its own private ones
    data: dict[str, Tensor]  # every tensor has one row per example
    generator: torch.Generator  # random numbers of this home
    # Gradient steps: phases, the parameters to start from and examples, to the parameters afterwards
    train: Callable[[Sequence[Any], Tree, dict[str, Tensor]], dict[str, Tensor]]
    # The method's loss of every example, without a gradient
    losses: Callable[[Tree, dict[str, Tensor]], Tensor]


class Personalization:
    """A function from a home to its parameters afterwards. The client keeps the private ones of them, and its own
    copies of shared ones that changed."""

    phases: Sequence[Any] = ()  # gradient steps that it ends with
    generates: bool = False  # private parameters are made from a text each time, also from none, and never trained

    @property
    def adapts(self) -> bool:
        """Whether own examples change anything."""
        return True

    def __call__(self, home: Home) -> Tree:
        raise NotImplementedError


@dataclass(frozen=True)
class GradientSteps(Personalization):
    phases: Sequence[Any] = ()  # of `Phase`; engines stack them for many clients

    @property
    def adapts(self) -> bool:
        return bool(self.phases)

    def __call__(self, home: Home) -> Tree:
        return home.train(self.phases, home.parameters, home.data)


@dataclass(frozen=True)
class Generated(Personalization):
    """`generate` makes parameters that take the place of private ones or, as the home's own copy, of shared ones. It
    also works without any examples."""

    generate: Callable[[Tree, dict[str, Tensor]], Tree]
    phases: Sequence[Any] = ()
    generates = True

    def __call__(self, home: Home) -> Tree:
        with torch.no_grad():
            made = {**home.parameters, **self.generate(home.parameters, home.data)}
        return home.train(self.phases, made, home.data)
