"""Declared statistics: what clients disclose on purpose beside parameter updates, and how a cohort's become one.

A statistic has the name and the shape of a parameter with the role `SERVER`. Clients receive that parameter and never
train it; the server rule sees the reduced statistic and decides what becomes of it.

    Sum(compute)              the weighted sum over clients: update.statistics[name]
    Best(compute, score)      the value of the client with the highest score: update.best[name]
    Stack(parameter)          one row for each user that the server itself holds: update.statistics[name]

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
    """Summed over clients, each times the client's weight."""

    compute: Callable[[Tree, torch.Generator], Tensor]  # from a client's parameters after local training
    label: str  # for people


@dataclass(frozen=True)
class Best:
    """Of all clients' values the one with the highest score, which is at most 0."""

    compute: Callable[[Tree], Tensor]
    score: Callable[[Tree], float]
    label: str


@dataclass(frozen=True)
class Stack:
    """One row for each user that the server itself holds, FedEmbed's prototypical users for instance. In every round
    each of them is trained from its row as the private parameter `parameter`, and the trained rows are the statistic.
    No client has a part in it."""

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
