"""A search at home: a user's device trains with several settings, and keeps what does best on a part of its own data.

Each choice is trained for a few epochs. It is scored on the validation part at the start and after each epoch; training
stops when the score does not improve. The best choice wins. If no score is finite, the parameters stay as they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from homespun.core.method import Batch, Phase
from homespun.core.personalize import Home, Personalization
from homespun.core.tree import Tree

Choice = TypeVar("Choice")
Score: TypeAlias = tuple[float, ...]  # larger is better


@dataclass(frozen=True)
class ChoicesAtHome(Personalization, Generic[Choice]):
    """`start` makes the first parameters of a choice from the examples that are trained on; `phase` is one epoch."""

    choices: Sequence[Choice]
    start: Callable[[Home, Batch, Choice], Tree]
    phase: Callable[[Choice], Phase]
    score: Callable[[Home, Tree, Batch], Score]
    epochs: int
    validation_share: float

    def __call__(self, home: Home) -> Tree:
        fit, check = split_rows(home.data, self.validation_share, generator=home.generator)
        if not len(next(iter(check.values()))):
            return home.parameters
        best, reached = home.parameters, None
        for choice in self.choices:
            trained, score = self._train(home, choice, fit, check)
            if all(map(math.isfinite, score)) and (reached is None or score > reached):
                best, reached = trained, score
        return best

    def _train(self, home: Home, choice: Choice, fit: Batch, check: Batch) -> tuple[Tree, Score]:
        """The parameters of the best epoch of a choice, and their score."""
        best = self.start(home, fit, choice)
        reached, phase = self.score(home, best, check), self.phase(choice)
        trained = best
        for _ in range(self.epochs):
            trained = home.train([phase], trained, fit)
            score = self.score(home, trained, check)
            if not score > reached:
                break
            best, reached = trained, score
        return best, reached


def split_rows(data: Batch, share: float, *, generator: torch.Generator) -> tuple[Batch, Batch]:
    """Examples to train on, and a random share of them, at least one if there are two, to choose by."""
    examples = len(next(iter(data.values())))
    held_out = min(max(1, round(share * examples)), examples - 1) if examples > 1 else 0
    order = torch.randperm(examples, generator=generator)
    parts: list[Tensor] = [order[held_out:].sort().values, order[:held_out].sort().values]
    fit, check = ({name: column[rows] for name, column in data.items()} for rows in parts)
    return fit, check
