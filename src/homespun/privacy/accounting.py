"""What rounds cost: epsilon at a given delta, for the sampler that is really used.

Adjacency is zero-out (Kairouz et al., 2021): neighbouring data sets have the same list of users, which is public, and
one user's examples are all replaced by none, so that this user's update counts as zero.

A round releases one Gaussian mechanism: a sum over the users that were drawn, each clipped to a known norm C, with
`noise_multiplier` times what one user moves as noise. Who is drawn does not depend on examples, so neighbours have the
same draws, and their sums differ by the one user's clipped update, at most C, if that user was drawn. With Poisson
sampling at rate q this is the pair N(0, s^2) and (1 - q) N(0, s^2) + q N(C, s^2), in both directions: the one that the
accountant's add-or-remove relation has for Poisson sampling. Private parameters and others' draws do not change this:
other users see nothing of the one user but what was released, and the bound C holds whatever the user's update is.

Two upper bounds are computed: privacy loss distributions (PLD), which compose tightly, and Renyi differential privacy
(RDP). The smaller one counts.
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
from homespun.core.progress import Done, Progress, Show, counted, silent

# "coarse" is PLD on a coarser grid: never less than PLD says, and ten times as fast
Way: TypeAlias = Literal["pld", "rdp", "coarse"]

ADJACENCY = "zero-out"
LEAST_NOISE, MOST_NOISE = 0.1, 1e4  # multipliers: less protects nobody, and with more nothing is learned
COARSE = 2e-3  # steps of privacy loss; the library's own are 1e-4
PRECISION = 1e-3  # of a multiplier that is found, relative


@dataclass(frozen=True, order=True)
class Release:
    """One round's mechanism. `rate` is the chance of every single user to be drawn; 1 claims no amplification."""

    rate: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise SettingsError(f"sampling rate {self.rate}: expected more than 0 and at most 1")
        if not (self.noise_multiplier > 0 and isfinite(self.noise_multiplier)):
            raise SettingsError(f"noise multiplier {self.noise_multiplier}: expected a positive number")
        if self.noise_multiplier < LEAST_NOISE:
            raise SettingsError(
                f"noise multiplier {self.noise_multiplier:g}: noise below {LEAST_NOISE:g} times what one user moves "
                "protects nobody: with everybody in it, a single round costs an epsilon of about 90. Give more noise."
            )


Spending: TypeAlias = Mapping[Release, int]  # how often each was made


def epsilon(spending: Spending, *, delta: float, way: Way = "pld") -> float:
    """What all of it costs together."""
    made = {release: times for release, times in spending.items() if times}
    if not made:
        return 0.0
    accounting = _library()
    accountant = {
        "pld": accounting.pld.PLDAccountant,
        "rdp": accounting.rdp.RdpAccountant,
        "coarse": partial(accounting.pld.PLDAccountant, value_discretization_interval=COARSE),
    }[way]()
    for release, times in sorted(made.items()):
        event = accounting.GaussianDpEvent(release.noise_multiplier)
        if release.rate < 1:
            event = accounting.PoissonSampledDpEvent(release.rate, event)
        with _without_warnings():
            accountant.compose(event, times)
    with _without_warnings():
        return float(accountant.get_epsilon(delta))


@dataclass(frozen=True)
class Bounds:
    """Two upper bounds of one epsilon."""

    pld: float
    rdp: float

    @property
    def epsilon(self) -> float:
        """The smaller one: both hold."""
        return min(self.pld, self.rdp)


def bounds(spending: Spending, *, delta: float) -> Bounds:
    """What all of it costs together, found in two ways."""
    return Bounds(*(epsilon(spending, delta=delta, way=way) for way in ("pld", "rdp")))


@contextmanager
def _without_warnings() -> Iterator[None]:
    """RDP tries many orders and says of each that does not converge that it leaves it out, which is what it is for."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def affordable(release: Release, *, rounds: int, spent: Spending, budget: float, delta: float) -> int:
    """How many of these rounds the budget has room for, after what was spent before."""

    def fits(count: int, *ways: Way) -> bool:
        spending = {**spent, release: spent.get(release, 0) + count}
        return any(epsilon(spending, delta=delta, way=way) <= budget for way in ways)

    low, high = 0, rounds + 1  # `low` is known to fit, or is nothing
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle, "coarse") else (low, middle)
    while low < rounds and fits(low + 1, "rdp", "pld"):
        low += 1
    return low


def multiplier_for(target: float, *, rate: float, rounds: int, delta: float, progress: Show = silent) -> float:
    """The least noise with which `rounds` rounds cost at most `target`."""

    def least(low: float, high: float, way: Way, done: Done = silent) -> float:
        """Between noise that is too little and noise that is enough."""
        while high - low > PRECISION * high:
            done(1)
            middle = (low + high) / 2
            enough = epsilon({Release(rate, middle): rounds}, delta=delta, way=way) <= target
            low, high = (low, middle) if enough else (middle, high)
        return high

    if not target > 0:
        raise SettingsError(f"epsilon {target}: expected a positive number")
    if epsilon({Release(rate, MOST_NOISE): rounds}, delta=delta, way="rdp") > target:
        raise SettingsError(
            f"epsilon {target:g} in {rounds} rounds with a sampling rate of {rate:g} takes more than {MOST_NOISE:g} "
            "times the clip norm as noise. Train fewer rounds, or allow a larger epsilon."
        )
    enough = least(LEAST_NOISE, MOST_NOISE, "rdp")  # quick, and more than PLD needs
    steps = ceil(log2(0.5 / PRECISION)) + 1  # from half of it to all of it, at most
    done = counted(progress, f"noise for epsilon {target:g}", total=steps)
    found = least(max(enough / 2, LEAST_NOISE), enough, "coarse", done)
    progress(Progress(f"noise for epsilon {target:g}", steps, steps))
    return found


def require_delta(delta: float, *, users: int) -> None:
    """A delta above one over the number of users allows to publish somebody's data outright."""
    if not 0 < delta < 1 / max(users, 1):
        raise SettingsError(
            f"delta {delta:g}: expected more than 0 and less than one over the number of users, 1/{users} = "
            f"{1 / max(users, 1):g}"
        )


def require_accountant() -> None:
    """Raise where the library that counts is missing: before anything is told, not after."""
    _library()


def _library() -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError as error:
        raise InputError(
            "differential privacy needs the extra privacy. Install it with `pip install homespun[privacy]`."
        ) from error
    return dp_accounting
