"""Declared statistics: what the server rule gets in addition to updates. Clients disclose `Sum` and `Best`; `Stack` is
computed on the server.

A statistic has the name and the shape of a parameter with the role `SERVER`. Clients receive that parameter and never
train it; the server rule updates it from the reduced statistic.

    Sum(compute)              the weighted sum over clients: update.statistics[name]
    Best(compute, score)      the value of the client with the highest score: update.best[name]
    Stack(parameter)          one row per user that the server holds: update.statistics[name]

Under differential privacy sums are clipped and noised like parameters; a method with a `Best` cannot be private.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from homespun.core.tree import Tree


@dataclass(frozen=True)
class Sum:
    """The sum over clients of weight times value.

    Example:
        >>> count = Sum(lambda trained, generator: torch.ones(1), label="that the client took part")
        >>> count.compute({}, torch.Generator())
        tensor([1.])
    """

    compute: Callable[[Tree, torch.Generator], Tensor]  # from a client's parameters after local training
    label: str  # shown in reports and notices


@dataclass(frozen=True)
class Best:
    """The value of the client with the highest score. Scores are at most 0, for instance minus a
    distance, so that a client cannot win with a score beyond the best possible one.

    Example:
        >>> best = Best(lambda trained: trained["w"], lambda trained: -float(trained["w"].norm()), "the shortest w")
        >>> best.score({"w": torch.tensor([3.0, 4.0])})
        -5.0
    """

    compute: Callable[[Tree], Tensor]
    score: Callable[[Tree], float]
    label: str


@dataclass(frozen=True)
class Stack:
    """One row per user that the server itself holds, for instance FedEmbed's prototypical users. In every round the
    server trains each of them with its row as the private parameter `parameter`; the trained rows are the statistic.
    Clients do not take part.

    Example:
        >>> Stack("user.embedding").parameter
        'user.embedding'
    """

    parameter: str
    label: str = ""


Statistic: TypeAlias = Sum | Best | Stack
Statistics: TypeAlias = Mapping[str, Statistic]


def sums(statistics: Statistics) -> dict[str, Sum]:
    return {name: one for name, one in statistics.items() if isinstance(one, Sum)}


def bests(statistics: Statistics) -> dict[str, Best]:
    return {name: one for name, one in statistics.items() if isinstance(one, Best)}


def stacks(statistics: Statistics) -> dict[str, Stack]:
    return {name: one for name, one in statistics.items() if isinstance(one, Stack)}
