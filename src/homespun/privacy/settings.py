"""The privacy settings of a run, and the mechanism that follows from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, sqrt
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from homespun.core.errors import SettingsError
from homespun.core.progress import Show, silent
from homespun.core.settings import Settings
from homespun.privacy.accounting import Release, find_noise_multiplier, require_delta
from homespun.privacy.ledger import Budget
from homespun.privacy.mechanism import Clip

PositiveFinite: TypeAlias = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Sampler: TypeAlias = Literal["shuffled", "uniform", "poisson"]


class Privacy(Settings):
    """User-level differential privacy of client updates. Neighbouring data sets have the same public list of users, and
    in one of them one user has no examples (zero-out)."""

    noise: Literal["central", "local"] = "central"
    """Who adds the noise: the server to the sum of updates, or every client to its own update."""
    clip: PositiveFinite | dict[str, PositiveFinite] = 1.0
    """Maximum L2 norm of a client's update; or one norm per group of parameters, by glob pattern."""
    metrics_clip: PositiveFinite | None = None
    """Maximum L2 norm of a client's metrics (loss, examples). Not set: clients do not send them."""
    epsilon: PositiveFinite | None = None
    """Total epsilon of all rounds, from which the noise is computed. Give either epsilon or noise_multiplier."""
    noise_multiplier: PositiveFinite | None = None
    """Standard deviation of the noise, in clip norms."""
    delta: float = Field(default=1e-5, gt=0.0, lt=1.0)
    """The delta of the (epsilon, delta) guarantee; must be less than one over the number of users."""
    amplification: bool = True
    """Account for amplification by secret sampling of the cohort; needs sampler = poisson."""
    budget: PositiveFinite | None = None
    """Maximum epsilon of the data set over all its runs, set once with delta. Not set: the ledger's budget, if any."""
    ledger: str | None = None
    """File that records the privacy spent on the data set, one per data set. Not set: next to the data."""
    public_filters: bool = False
    """Declare public which examples remain after filters that count all users' examples. Otherwise such filters are
    rejected."""
    insecure: bool = False
    """Draw noise and cohorts from the seed, so that a run is repeatable. This gives no protection."""

    @field_validator("clip", mode="before")
    @classmethod
    def _check_norms(cls, clip: Any) -> Any:
        """Give one error message instead of one per alternative type."""
        norms = clip.values() if isinstance(clip, dict) else [clip]
        if not all(isinstance(norm, int | float) and 0 < norm < inf for norm in norms) or not norms:
            raise ValueError('expected a positive number, or one per glob pattern, as in {"head.*" = 0.5, "*" = 1.0}')
        return clip

    @model_validator(mode="after")
    def _check_amount(self) -> Privacy:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("privacy needs either epsilon or noise_multiplier")
        return self


@dataclass(frozen=True)
class PrivacyPlan:
    """The parameters of one run's mechanism, computed from its settings."""

    settings: Privacy
    clip: Clip
    noise_multiplier: float  # standard deviation of the added noise, in clip norms
    release: Release  # one round, for the accounting
    expected: float  # mean number of clients per round
    budget: Budget | None

    @property
    def local(self) -> bool:
        return self.settings.noise == "local"


def require_public_filters(settings: Privacy, *, looks_across: Sequence[str]) -> None:
    """Raise if filters that count all users' examples were used and their outcome is not declared public."""
    if looks_across and not settings.public_filters:
        raise SettingsError(
            f"privacy: {' and '.join(looks_across)} count the examples of all users, so that one user's examples "
            "decide which examples of other users are kept, and the noise does not hide that. Filter the data by a "
            "fixed list beforehand, or declare the outcome public: privacy.public_filters=true."
        )


def validate_privacy(settings: Privacy, *, users: int, sampler: Sampler, shared: Collection[str]) -> None:
    """Raise if the guarantee of these settings does not hold for this run."""
    require_delta(settings.delta, users=users)
    if settings.noise == "central" and settings.amplification and sampler != "poisson":
        raise SettingsError(
            f"privacy: amplification holds for sampler = 'poisson', not for {sampler!r}. Use that sampler, or set "
            "amplification = false, which accounts for each round at full cost."
        )
    if not shared:
        raise SettingsError("privacy: the method shares no parameters: nothing is to be protected. Leave privacy out.")
    clip = build_clip(settings)
    used = {clip.group_of(name) for name in shared}
    unused = [group for group in clip.norms if group not in used]
    if unused:  # each group increases the noise on all groups
        raise SettingsError(
            f"privacy: clip patterns {', '.join(map(repr, unused))} match no shared parameter. Patterns are tried in "
            f"order, and the first match counts. The shared parameters are {', '.join(map(repr, sorted(shared)))}."
        )


def build_clip(settings: Privacy) -> Clip:
    norms = settings.clip if isinstance(settings.clip, dict) else {"*": settings.clip}
    return Clip(norms, settings.metrics_clip)


def plan_privacy(
    settings: Privacy, *, users: int, cohort: int, sampler: Sampler, rounds: int, progress: Show = silent
) -> PrivacyPlan:
    """Compute a run's mechanism. With an epsilon, this searches for the noise, which takes seconds."""
    rate = 1.0 if settings.noise == "local" or not settings.amplification else cohort / users
    # Zero-out: replacing a user's update by zero changes a sum, and a single update, by at most one clip norm. Cohorts
    # of a fixed size and local noise are accounted for with a sensitivity of two: more than zero-out requires, so that
    # epsilon also holds if one user's examples are replaced by any others, since two updates may differ by two norms.
    fixed_size = sampler != "poisson" and cohort < users
    sensitivity = 2 if settings.noise == "local" or fixed_size else 1  # in clip norms
    multiplier = settings.noise_multiplier
    if multiplier is None:
        assert settings.epsilon is not None
        in_passes = settings.noise == "local" and sampler == "shuffled"  # each client uploads once per pass
        releases = ceil(rounds / ceil(users / cohort)) if in_passes else rounds
        multiplier = sensitivity * find_noise_multiplier(
            settings.epsilon, rate=rate, rounds=releases, delta=settings.delta, progress=progress
        )
    return PrivacyPlan(
        settings=settings,
        clip=build_clip(settings),
        noise_multiplier=multiplier,
        release=Release(rate, multiplier / sensitivity),
        expected=float(cohort),
        budget=None if settings.budget is None else Budget(settings.budget, settings.delta),
    )


def noise_to_clip_ratio(plan: PrivacyPlan, sizes: Mapping[str, int]) -> tuple[str, float]:
    """The L2 norm of the noise on a round's average update, in clip norms, for the group of parameters where it is
    largest. `sizes` maps each parameter to its number of elements. The average update has at most one clip norm."""
    deviations = plan.clip.deviations(sizes, noise_multiplier=plan.noise_multiplier)
    squares = dict.fromkeys(plan.clip.norms, 0.0)
    for name, size in sizes.items():
        squares[plan.clip.group_of(name)] += size * deviations[name] ** 2
    clients = sqrt(plan.expected) if plan.local else plan.expected  # each client adds noise, or the server once
    ratios = {group: sqrt(square) / clients / plan.clip.norms[group] for group, square in squares.items()}
    group = max(ratios, key=lambda name: ratios[name])
    return group, ratios[group]
