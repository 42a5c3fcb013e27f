"""The number of rounds of a run, and their cohorts."""

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

COUNTED_USERS = 1000  # at most; the mean number of their examples gives the length of an epoch


@dataclass(frozen=True)
class Schedule:
    built: BuiltMethod
    population: Federation
    settings: RunSettings

    @cached_property
    def cohorts(self) -> Cohorts:
        return _make_cohorts(len(self.population.users), self.settings)

    @cached_property
    def rounds_per_epoch(self) -> float:
        """Computed on first use, because counting examples may take a while."""
        return _rounds_per_epoch(self.cohorts, self.built, self.population, seed=self.settings.seed)

    @cached_property
    def total_rounds(self) -> int:
        if self.settings.rounds is not None:
            return self.settings.rounds
        return ceil((self.settings.epochs or 0) * self.rounds_per_epoch)


def _make_cohorts(users: int, settings: RunSettings) -> Cohorts:
    size = users if settings.cohort == "all" else min(settings.cohort, users)
    privacy = settings.privacy  # with noise at the client, the server sees who takes part
    secret = privacy is not None and privacy.noise == "central" and not privacy.insecure
    return Cohorts(users, size, settings.sampler, settings.seed, secret=secret, decay=settings.cohort_decay)


def _rounds_per_epoch(cohorts: Cohorts, built: BuiltMethod, population: Federation, *, seed: int) -> float:
    """Rounds in which as many examples are used as there are.

    If clients use all their examples in a round, this is one pass over the users. If they take a fixed number of steps,
    it is more passes the more examples they have.
    """
    first = first_shared_phase(built)
    if first.steps is None:
        return cohorts.rounds_per_pass
    positions = sample_users(population, at_most=COUNTED_USERS, seed=seed)
    mean_examples = float(np.mean([len(population.examples(position)) for position in positions]))
    if mean_examples == 0:
        return cohorts.rounds_per_pass
    return cohorts.rounds_per_pass * mean_examples / (first.steps * min(first.batch, mean_examples))


def first_shared_phase(built: BuiltMethod) -> Phase:
    """The first phase that trains shared parameters, or the first phase."""
    shared = built.partition.names(*SHARED)
    phases = [phase for phase in built.method.local.phases if isinstance(phase, Phase)]
    return next((phase for phase in phases if optimizers(phase, shared)), phases[0])
