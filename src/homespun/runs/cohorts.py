"""Draws the cohort of every round."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, floor

import numpy as np

from homespun.core import seeds
from homespun.privacy.noise import secure_uniform
from homespun.privacy.settings import Sampler


@dataclass
class Cohorts:
    users: int
    size: int  # users per round; on average, if they are drawn independently
    sampler: Sampler
    seed: int
    # Cohorts cannot be derived from the seed. Draws depend on the number of users, which is public, and not on their
    # examples: data sets in which one user has no examples (zero-out) have the same draws.
    secret: bool = False
    decay: float = 0.0  # a round's share of its clients is exp(-decay * round)
    _order: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=np.int64))

    @property
    def rounds_per_pass(self) -> float:
        """Rounds in which every user takes part once; on average, if cohorts are drawn independently."""
        rounds = self.users / self.size
        return ceil(rounds) if self.sampler == "shuffled" else rounds

    def of(self, round: int) -> list[int]:
        """The positions of the users in a round's cohort."""
        if not self.decay:
            return self._all_of(round)
        everyone = self._all_of(round)
        count = min(len(everyone), max(1, round_half_up(len(everyone) * exp(-self.decay * round))))
        kept = seeds.numpy_generator(self.seed, "cohort decay", round).choice(len(everyone), count, replace=False)
        return [everyone[place] for place in sorted(kept.tolist())]

    def _all_of(self, round: int) -> list[int]:
        """A round's cohort before it shrinks."""
        if self.sampler == "poisson":
            drawn = secure_uniform(self.users) if self.secret else self._draw(round).random(self.users)
            return np.flatnonzero(drawn < self.size / self.users).tolist()
        if self.sampler == "uniform":
            if self.secret:
                return sorted(_secure_order(self.users)[: self.size].tolist())
            drawn = self._draw(round).choice(self.users, self.size, replace=False, shuffle=False)
            return sorted(int(position) for position in drawn)
        pass_number, round_in_pass = divmod(round, int(self.rounds_per_pass))
        order, first = self._shuffled(pass_number), round_in_pass * self.size
        return sorted(int(position) for position in order[first : first + self.size])

    def _draw(self, round: int) -> np.random.Generator:
        return seeds.numpy_generator(self.seed, "cohort", round)

    def _shuffled(self, pass_number: int) -> np.ndarray:
        """All users in the order of one pass over them; cached, because shuffling a million users takes a while. A
        secret order is never stored: a run that resumes within a pass draws a new one."""
        if self._order[0] != pass_number:
            seeded = seeds.numpy_generator(self.seed, "epoch", pass_number)
            self._order = pass_number, _secure_order(self.users) if self.secret else seeded.permutation(self.users)
        return self._order[1]


def round_half_up(number: float) -> int:
    return floor(number + 0.5)


def _secure_order(users: int) -> np.ndarray:
    return np.argsort(secure_uniform(users), kind="stable")
