"""Who takes part in which round."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from homespun.core import seeds
from homespun.privacy.noise import secure_uniform
from homespun.privacy.settings import Sampler


@dataclass
class Cohorts:
    users: int
    size: int  # users a round; on average, where they are drawn independently
    sampler: Sampler
    seed: int
    # Drawn so that the seed does not say who came. Draws depend on the number of users, which is public, never on what
    # users have: data sets in which one user has no examples (zero-out) have the same draws.
    secret: bool = False
    _order: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=np.int64))

    @property
    def rounds_per_turn(self) -> float:
        """Rounds until everybody had their turn; on average, where cohorts are drawn independently."""
        rounds = self.users / self.size
        return ceil(rounds) if self.sampler == "shuffled" else rounds

    def of(self, round: int) -> list[int]:
        """Positions of users."""
        if self.sampler == "poisson":
            drawn = secure_uniform(self.users) if self.secret else self._draw(round).random(self.users)
            return np.flatnonzero(drawn < self.size / self.users).tolist()
        if self.sampler == "uniform":
            if self.secret:
                return sorted(_secure_order(self.users)[: self.size].tolist())
            drawn = self._draw(round).choice(self.users, self.size, replace=False, shuffle=False)
            return sorted(int(position) for position in drawn)
        turn, place = divmod(round, int(self.rounds_per_turn))
        return sorted(int(position) for position in self._shuffled(turn)[place * self.size : (place + 1) * self.size])

    def _draw(self, round: int) -> np.random.Generator:
        return seeds.numpy_generator(self.seed, "cohort", round)

    def _shuffled(self, turn: int) -> np.ndarray:
        """Everybody in this turn's order; kept, because a million take a while. A secret one is written down nowhere:
        what a kill leaves of its turn is drawn anew."""
        if self._order[0] != turn:
            seeded = seeds.numpy_generator(self.seed, "epoch", turn)
            self._order = turn, _secure_order(self.users) if self.secret else seeded.permutation(self.users)
        return self._order[1]


def _secure_order(users: int) -> np.ndarray:
    return np.argsort(secure_uniform(users), kind="stable")
