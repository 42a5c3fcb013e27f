"""A search at home: a user's device trains with several settings, and keeps what does best on a part of its own data.

All choices are trained epoch by epoch, on the same batches. Each is scored on the validation part at the start and
after each epoch; its training stops when its score does not improve. With `survivors` below 1, only this share of the
choices, the best ones, train on after each epoch (successive halving, Jamieson and Talwalkar, 2016). The best epoch of
the best choice wins. If no score is finite, the parameters stay as they were. So they do if training improves no choice
(all may diverge) and the first number of the best score is below that of the parameters as they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from homespun.core.method import Batch, Phase
from homespun.core.personalize import Home, Personalization
from homespun.core.tree import Tree

Choice = TypeVar("Choice")
Score: TypeAlias = tuple[float, ...]  # larger is better
NO_PLACE = -1


@dataclass(frozen=True)
class ChoicesAtHome(Personalization, Generic[Choice]):
    """`starts` makes the first parameters of all choices from the examples that are trained on; `phase` is one epoch;
    `score` judges the model's output for the validation part.

    `refine` makes variants of the best parameters from the examples that were trained on, without training. The best
    one is made once more from all examples. `untrained` replaces the search if there is no choice, or no example to
    choose by. `describe` says what the client should know about its new parameters; `adds_at_most` is the size of the
    largest parameters that a choice adds."""

    choices: Sequence[Choice]
    starts: Callable[[Home, Batch, Sequence[Choice]], Sequence[Tree]]
    phase: Callable[[Choice], Phase]
    score: Callable[[Batch, Tensor], Score]
    epochs: int
    validation_share: float
    survivors: float = 1.0
    adds_at_most: int = 0
    refine: Callable[[Home, Tree, Batch], Sequence[Tree]] = field(default=lambda home, parameters, data: [parameters])
    describe: Callable[[Tree, Batch], list[str]] = field(default=lambda parameters, data: [])
    untrained: Callable[[Home], Tree] = field(default=lambda home: home.parameters)

    def __call__(self, home: Home) -> Tree:
        return self.search(home).parameters

    def search(self, home: Home) -> Best:
        fit, check = split_rows(home.data, self.validation_share, generator=home.generator)
        if not self.choices or not len(next(iter(check.values()))):
            return Best(self.untrained(home))
        running = dict(enumerate(self.starts(home, fit, self.choices)))
        reached = self._scores(home, running, check)
        best = start = self._better(Best(home.parameters), running, reached)
        for _ in range(self.epochs):
            if not running:
                break
            phases = [self.phase(self.choices[place]) for place in running]
            trained = dict(zip(running, home.train_each(phases, list(running.values()), fit), strict=True))
            scores = self._scores(home, trained, check)
            running = {place: one for place, one in trained.items() if scores[place] > reached[place]}
            reached = scores
            best = self._better(best, running, reached)
            running = {place: running[place] for place in self._survivors(running, reached)}
        if best is start and self._as_it_was(home, check) > start.score[:1]:
            return Best(home.parameters)
        return self._refined(home, best, fit, check)

    def _survivors(self, running: Mapping[int, Tree], reached: Mapping[int, Score]) -> list[int]:
        """The best choices in training; of equal ones, the first."""
        ordered = sorted(running, key=lambda place: reached[place], reverse=True)  # a stable sort
        return sorted(ordered[: math.ceil(self.survivors * len(ordered))])

    def _refined(self, home: Home, best: Best, fit: Batch, check: Batch) -> Best:
        variants = dict(enumerate(self.refine(home, best.parameters, fit)))
        if best.place == NO_PLACE or len(variants) == 0:
            return best
        chosen = 0
        if len(variants) > 1:
            chosen = self._better(Best(best.parameters), variants, self._scores(home, variants, check)).place
        return replace(best, parameters=self.refine(home, best.parameters, home.data)[max(chosen, 0)])

    def _as_it_was(self, home: Home, check: Batch) -> Score:
        """The first number of the score of the client's parameters without any choice."""
        found = self._scores(home, {NO_PLACE: home.parameters}, check)[NO_PLACE]
        return found[:1] if math.isfinite(found[0]) else ()

    def notices(self, before: Tree, after: Tree, data: dict[str, Tensor]) -> list[str]:
        if not self.choices:
            return self.describe(after, data)
        phase = self.phase(self.choices[0])
        trained = [name for name, value in before.items() if len(value.flatten()) and phase.optimizer_of(name)]
        same = trained and all(torch.equal(before[name], after[name]) for name in trained)
        if not same:
            return self.describe(after, data)
        few = len(next(iter(data.values()))) < 2
        why = (
            "one example is too few to choose settings by" if few else "training improved it with none of the settings"
        )
        return [f"The shared model is kept as it was: {why}.", *self.describe(after, data)]

    def _scores(self, home: Home, parameters: Mapping[int, Tree], check: Batch) -> dict[int, Score]:
        outputs = home.predict_each(list(parameters.values()), check)
        return {place: self.score(check, output) for place, output in zip(parameters, outputs, strict=True)}

    def _better(self, best: Best, parameters: Mapping[int, Tree], scores: Mapping[int, Score]) -> Best:
        """The best so far; of equal choices, the first."""
        for place, values in parameters.items():
            found = Best(values, place, scores[place])
            if all(map(math.isfinite, found.score)) and found.is_better(best):
                best = found
        return best


@dataclass(frozen=True)
class Best:
    """What a search found; without a score, the parameters as they were."""

    parameters: Tree
    place: int = NO_PLACE  # of the choice
    score: Score = ()

    def is_better(self, other: Best) -> bool:
        return (self.score, -self.place) > (other.score, -other.place)


def split_rows(data: Batch, share: float, *, generator: torch.Generator) -> tuple[Batch, Batch]:
    """Examples to train on, and a random share of them, at least one if there are two, to choose by."""
    examples = len(next(iter(data.values())))
    held_out = min(max(1, round(share * examples)), examples - 1) if examples > 1 else 0
    order = torch.randperm(examples, generator=generator)
    parts: list[Tensor] = [order[held_out:].sort().values, order[:held_out].sort().values]
    fit, check = ({name: column[rows] for name, column in data.items()} for rows in parts)
    return fit, check
