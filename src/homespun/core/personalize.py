"""Personalization: computes a client's private state from its own examples. Nothing is uploaded.

    GradientSteps(phases)             gradient steps on the client's examples
    Generated(generate)               one pass of a generator over the examples, without gradients
    Generated(generate, phases)       the generator, then gradient steps

A method may define its own: a subclass of `Personalization` whose `__call__` takes a `Home`.
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
    """The input of personalization: a client's examples, its parameters, and training functions of the engine.

    Example:
        >>> engine = {name: lambda *given: None for name in ("train", "train_each", "losses", "predict_each")}
        >>> home = Home("ada", {"w": torch.ones(1)}, {}, torch.Generator(), **engine)
        >>> home.user
        'ada'
    """

    user: str
    parameters: Tree  # shared, frozen and private
    data: dict[str, Tensor]  # every tensor has one row per example
    generator: torch.Generator  # random numbers for this client
    # Gradient steps: (phases, initial parameters, examples) -> trained parameters
    train: Callable[[Sequence[Any], Tree, dict[str, Tensor]], dict[str, Tensor]]
    # The same for several choices at once: (a phase of each, initial parameters of each, examples) -> trained
    # parameters of each. All see the same batches; their phases differ in nothing but the optimizers.
    train_each: Callable[[Sequence[Any], Sequence[Tree], dict[str, Tensor]], list[dict[str, Tensor]]]
    # The method's loss for every example, without gradients
    losses: Callable[[Tree, dict[str, Tensor]], Tensor]
    # The model's output for these examples with each of several parameters, without gradients
    predict_each: Callable[[Sequence[Tree], dict[str, Tensor]], list[Tensor]]


class Personalization:
    """A function from a `Home` to the client's personalized parameters. The client keeps the private ones, and copies
    of the shared ones that changed.

    Example:
        >>> class Zero(Personalization):
        ...     def __call__(self, home):
        ...         return {**home.parameters, "user.embedding": torch.zeros(4)}
        >>> Zero().adapts
        True
    """

    phases: Sequence[Any] = ()  # the gradient steps at its end
    generates: bool = False  # private parameters are generated from a text each time, even an empty one
    # Whether each client is personalized alone, so that its result does not depend on who else is at the same time
    alone: bool = True
    adds_at_most: int = 0  # numbers in parameters that a client has after it and a new user has not

    @property
    def adapts(self) -> bool:
        """Whether the client's examples change its parameters."""
        return True

    def __call__(self, home: Home) -> Tree:
        raise NotImplementedError

    def notices(self, before: Tree, after: Tree, data: dict[str, Tensor]) -> list[str]:
        """What the client should know about its result: its parameters before and after, and its examples. They are
        shown to the client only."""
        return []


@dataclass(frozen=True)
class GradientSteps(Personalization):
    """Example:
    >>> GradientSteps().adapts  # without phases nothing is learned
    False
    """

    phases: Sequence[Any] = ()  # of type `Phase`; engines run them for many clients at once
    alone = False

    @property
    def adapts(self) -> bool:
        return bool(self.phases)

    def __call__(self, home: Home) -> Tree:
        return home.train(self.phases, home.parameters, home.data)


@dataclass(frozen=True)
class Generated(Personalization):
    """`generate` computes parameters that replace private ones or, as the client's own copy, shared ones. It must also
    work without examples.

    Example:
        >>> Generated(lambda parameters, data: {"user.embedding": torch.zeros(4)}).generates
        True
    """

    generate: Callable[[Tree, dict[str, Tensor]], Tree]
    phases: Sequence[Any] = ()
    generates = True

    def __call__(self, home: Home) -> Tree:
        with torch.no_grad():
            generated = {**home.parameters, **self.generate(home.parameters, home.data)}
        return home.train(self.phases, generated, home.data)
