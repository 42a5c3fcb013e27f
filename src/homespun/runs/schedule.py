"""How long a run is and who takes part in which round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np

from homespun.core.method import BuiltMethod, Phase, optimizers
from homespun.core.roles import SHARED
from homespun.data.federation import Federation
from homespun.data.splits import sample_users
from homespun.runs.cohorts import Cohorts
from homespun.runs.settings import RunSettings

COUNTED_USERS = 1000  # as many users' examples are counted to know how long an epoch is


@dataclass(frozen=True)
class Schedule:
    built: BuiltMethod
    population: Federation
    settings: RunSettings

    @cached_property
    def cohorts(self) -> Cohorts:
        return _cohorts(len(self.population.users), self.settings)

    @cached_property
    def rounds_per_epoch(self) -> float:
        """Counting examples may take a while: it is done when it is asked for."""
        return _rounds_per_epoch(self.cohorts, self.built, self.population, seed=self.settings.seed)

    @cached_property
    def total_rounds(self) -> int:
        if self.settings.rounds is not None:
            return self.settings.rounds
        return ceil((self.settings.epochs or 0) * self.rounds_per_epoch)


def _cohorts(users: int, settings: RunSettings) -> Cohorts:
    size = users if settings.cohort == "all" else min(settings.cohort, users)
    privacy = settings.privacy  # with noise at the client, who came is plain to see
    secret = privacy is not None and privacy.noise == "central" and not privacy.insecure
    return Cohorts(users, size, settings.sampler, settings.seed, secret=secret)


def _rounds_per_epoch(cohorts: Cohorts, built: BuiltMethod, population: Federation, *, seed: int) -> float:
    """Rounds until as many examples were used as there are.

    A client that goes through its own examples in one turn makes this the turn; one that takes a fixed number of steps
    needs more turns for more examples.
    """
    first = first_shared_phase(built)
    if first.steps is None:
        return cohorts.rounds_per_turn
    positions = sample_users(population, at_most=COUNTED_USERS, seed=seed)
    mean_examples = float(np.mean([len(population.examples(position)) for position in positions]))
    if mean_examples == 0:
        return cohorts.rounds_per_turn
    return cohorts.rounds_per_turn * mean_examples / (first.steps * min(first.batch, mean_examples))


def first_shared_phase(built: BuiltMethod) -> Phase:
    """The first phase that trains something shared."""
    shared = built.partition.names(*SHARED)
    phases = [phase for phase in built.method.local.phases if isinstance(phase, Phase)]
    return next((phase for phase in phases if optimizers(phase, shared)), phases[0])
