"""Privacy accounting: the epsilon that rounds cost at a given delta, for the sampler in use.

Adjacency is zero-out (Kairouz et al., 2021): neighbouring data sets have the same public list of users, and in one of
them one user has no examples, so that this user's update counts as zero.

A round is one application of the Gaussian mechanism: a sum over the sampled users, each update clipped to a known norm
C, plus noise with a standard deviation of `noise_multiplier` times the sensitivity. Sampling does not depend on
examples, so neighbours have the same cohorts, and their sums differ by the one user's clipped update, at most C, if
that user was sampled. With Poisson sampling at rate q this is the pair N(0, s^2) and (1 - q) N(0, s^2) + q N(C, s^2),
in both directions: the pair of the accountant's add-or-remove relation for Poisson sampling. Private parameters and the
sampling of other users do not change this: other users see nothing of the one user but the releases, and the bound C
holds for any update of the user.

Two upper bounds are computed: privacy loss distributions (PLD), which compose tightly, and Renyi differential privacy
(RDP). The smaller one is reported.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import ceil, isfinite, log2
from typing import Any, Literal, TypeAlias

from homespun.core.errors import InputError, SettingsError
from homespun.core.progress import Done, Progress, Show, silent, start_count

# "coarse" is PLD on a coarser grid: never below PLD, and ten times as fast
Accountant: TypeAlias = Literal["pld", "rdp", "coarse"]

ADJACENCY = "zero-out"
MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER = 0.1, 1e4  # less gives no protection; with more, no model learns
COARSE_INTERVAL = 2e-3  # discretization of the privacy loss; the library's default is 1e-4
PRECISION = 1e-3  # relative, of a noise multiplier that is searched for


@dataclass(frozen=True, order=True)
class Release:
    """The mechanism of one round. `rate` is the probability of each user to be sampled; 1 claims no amplification."""

    rate: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise SettingsError(f"sampling rate {self.rate}: expected more than 0 and at most 1")
        if not (self.noise_multiplier > 0 and isfinite(self.noise_multiplier)):
            raise SettingsError(f"noise multiplier {self.noise_multiplier}: expected a positive number")
        if self.noise_multiplier < MIN_NOISE_MULTIPLIER:
            raise SettingsError(
                f"noise multiplier {self.noise_multiplier:g}: expected at least {MIN_NOISE_MULTIPLIER:g}. With less "
                "noise, a single round that samples all users costs an epsilon of about 90 or more."
            )


Spending: TypeAlias = Mapping[Release, int]  # the number of times each release was made


def compute_epsilon(spending: Spending, *, delta: float, accountant: Accountant = "pld") -> float:
    """The total epsilon of all releases."""
    made = {release: times for release, times in spending.items() if times}
    if not made:
        return 0.0
    library = _import_dp_accounting()
    composed = {
        "pld": library.pld.PLDAccountant,
        "rdp": library.rdp.RdpAccountant,
        "coarse": partial(library.pld.PLDAccountant, value_discretization_interval=COARSE_INTERVAL),
    }[accountant]()
    for release, times in sorted(made.items()):
        event = library.GaussianDpEvent(release.noise_multiplier)
        if release.rate < 1:
            event = library.PoissonSampledDpEvent(release.rate, event)
        with _without_warnings():
            composed.compose(event, times)
    with _without_warnings():
        return float(composed.get_epsilon(delta))


@dataclass(frozen=True)
class Bounds:
    """Two upper bounds on one epsilon."""

    pld: float
    rdp: float

    @property
    def epsilon(self) -> float:
        """The smaller of the two, since both hold."""
        return min(self.pld, self.rdp)


def compute_bounds(spending: Spending, *, delta: float) -> Bounds:
    """The total epsilon of all releases, bounded by PLD and by RDP."""
    return Bounds(*(compute_epsilon(spending, delta=delta, accountant=name) for name in ("pld", "rdp")))


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence the library's notices about Renyi orders that do not converge: RDP skips them by design."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def count_affordable_rounds(release: Release, *, rounds: int, spent: Spending, budget: float, delta: float) -> int:
    """The number of further rounds, at most `rounds`, that fit into the budget after earlier spending."""

    def fits(count: int, *accountants: Accountant) -> bool:
        spending = {**spent, release: spent.get(release, 0) + count}
        return any(compute_epsilon(spending, delta=delta, accountant=name) <= budget for name in accountants)

    low, high = 0, rounds + 1  # `low` rounds fit, `high` rounds do not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle, "coarse") else (low, middle)
    while low < rounds and fits(low + 1, "rdp", "pld"):
        low += 1
    return low


def find_noise_multiplier(target: float, *, rate: float, rounds: int, delta: float, progress: Show = silent) -> float:
    """The smallest noise multiplier with which `rounds` rounds cost at most epsilon `target`."""

    def bisect(low: float, high: float, accountant: Accountant, done: Done = silent) -> float:
        """Bisect between too little noise and enough noise."""
        while high - low > PRECISION * high:
            done(1)
            middle = (low + high) / 2
            enough = compute_epsilon({Release(rate, middle): rounds}, delta=delta, accountant=accountant) <= target
            low, high = (low, middle) if enough else (middle, high)
        return high

    if not target > 0:
        raise SettingsError(f"epsilon {target}: expected a positive number")
    if compute_epsilon({Release(rate, MAX_NOISE_MULTIPLIER): rounds}, delta=delta, accountant="rdp") > target:
        raise SettingsError(
            f"epsilon {target:g} in {rounds} rounds with a sampling rate of {rate:g} needs a noise multiplier above "
            f"{MAX_NOISE_MULTIPLIER:g}. Train fewer rounds, or allow a larger epsilon."
        )
    enough = bisect(MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER, "rdp")  # fast; PLD needs no more
    steps = ceil(log2(0.5 / PRECISION)) + 1  # at most, from `enough / 2` to `enough`
    done = start_count(progress, f"noise for epsilon {target:g}", total=steps)
    found = bisect(max(enough / 2, MIN_NOISE_MULTIPLIER), enough, "coarse", done)
    progress(Progress(f"noise for epsilon {target:g}", steps, steps))
    return found


def require_delta(delta: float, *, users: int) -> None:
    """Raise unless delta < 1 / users: a larger delta would allow publishing one user's data outright."""
    if not 0 < delta < 1 / max(users, 1):
        raise SettingsError(
            f"delta {delta:g}: expected more than 0 and less than one over the number of users, 1/{users} = "
            f"{1 / max(users, 1):g}"
        )


def require_accountant() -> None:
    """Raise if the accounting library is not installed, before any update is disclosed."""
    _import_dp_accounting()


def _import_dp_accounting() -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError as error:
        raise InputError(
            "differential privacy needs an optional dependency. Install it with `pip install homespun[privacy]`."
        ) from error
    return dp_accounting
