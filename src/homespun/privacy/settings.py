"""What a run says of its privacy, and what follows from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, sqrt
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from homespun.core.errors import SettingsError
from homespun.core.progress import Show, silent
from homespun.core.settings import Settings
from homespun.privacy.accounting import Release, multiplier_for, require_delta
from homespun.privacy.ledger import Budget
from homespun.privacy.mechanism import Clip

PositiveFinite: TypeAlias = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Sampler: TypeAlias = Literal["shuffled", "uniform", "poisson"]


class Privacy(Settings):
    """User-level differential privacy of what clients send. Neighbouring data sets have the same public list of users;
    one user's examples are replaced by none (zero-out)."""

    noise: Literal["central", "local"] = "central"
    """Who adds the noise: the server to the sum of updates, or every client to its own update."""
    clip: PositiveFinite | dict[str, PositiveFinite] = 1.0
    """Longest update of a client (L2 norm); or one norm for each group of parameters, by glob."""
    metrics_clip: PositiveFinite | None = None
    """Longest vector of a client's metrics (loss, examples). Not set: clients do not send them."""
    epsilon: PositiveFinite | None = None
    """What all rounds may cost together; the noise follows from it. Give either epsilon or noise_multiplier."""
    noise_multiplier: PositiveFinite | None = None
    """The noise itself: its standard deviation in clip norms."""
    delta: float = Field(default=1e-5, gt=0.0, lt=1.0)
    """The delta that epsilon is for; it has to be less than one over the number of users."""
    amplification: bool = True
    """Whether the accounting uses that nobody knows who was drawn; needs sampler = poisson."""
    budget: PositiveFinite | None = None
    """What the data set may cost over all its runs, set once with delta. Not set: what the ledger says, if anything."""
    ledger: str | None = None
    """File that records what was spent on the data set, one for each data set. Not set: beside the data."""
    public_filters: bool = False
    """Declare public what filters that count all users' examples left of the corpus. Otherwise they are refused."""
    insecure: bool = False
    """Draw noise and cohorts from the seed, so that a run can be repeated. This protects nobody."""

    @field_validator("clip", mode="before")
    @classmethod
    def _a_norm_or_norms(cls, clip: Any) -> Any:
        """One sentence, not one for every form that it does not have."""
        norms = clip.values() if isinstance(clip, dict) else [clip]
        if not all(isinstance(norm, int | float) and 0 < norm < inf for norm in norms) or not norms:
            raise ValueError('expected a positive number, or such numbers by glob, as in {"head.*" = 0.5, "*" = 1.0}')
        return clip

    @model_validator(mode="after")
    def _one_amount(self) -> Privacy:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("privacy needs either epsilon or noise_multiplier")
        return self


@dataclass(frozen=True)
class Plan:
    """The mechanism of one run, worked out."""

    settings: Privacy
    clip: Clip
    noise_multiplier: float  # of the noise that is added, in clip norms
    release: Release  # what one round costs
    expected: float  # clients a round, on average
    budget: Budget | None

    @property
    def local(self) -> bool:
        return self.settings.noise == "local"


def require_public(settings: Privacy, *, looks_across: Sequence[str]) -> None:
    """Raise where filters that count all users' examples were used, and what they left is not stated to be public."""
    if looks_across and not settings.public_filters:
        raise SettingsError(
            f"privacy: {' and '.join(looks_across)} count the examples of all users, so that one user's examples "
            "decide which examples of others take part, and no noise hides that. Filter by a fixed list beforehand, or "
            "state that what is left is public: privacy.public_filters=true."
        )


def require_promise(settings: Privacy, *, users: int, sampler: Sampler, shared: Collection[str]) -> None:
    """Raise where a run with so many users could not keep what these settings say."""
    require_delta(settings.delta, users=users)
    if settings.noise == "central" and settings.amplification and sampler != "poisson":
        raise SettingsError(
            f"privacy: amplification holds for sampler = 'poisson', not for {sampler!r}. Set that, or amplification = "
            "false and pay for every round in full."
        )
    clip = clip_of(settings)
    used = {clip.group_of(name) for name in shared}
    idle = [group for group in clip.norms if group not in used]
    if idle:  # every group makes the noise of all of them larger
        raise SettingsError(
            f"privacy: clip has norms for {', '.join(map(repr, idle))}, which nothing that is sent goes by: the first "
            f"glob that matches counts, in this order. Sent are {', '.join(map(repr, sorted(shared)))}."
        )


def clip_of(settings: Privacy) -> Clip:
    norms = settings.clip if isinstance(settings.clip, dict) else {"*": settings.clip}
    return Clip(norms, settings.metrics_clip)


def make_plan(
    settings: Privacy, *, users: int, cohort: int, sampler: Sampler, rounds: int, progress: Show = silent
) -> Plan:
    """What a run with so many users and rounds releases; with an epsilon, after a search that takes seconds."""
    rate = 1.0 if settings.noise == "local" or not settings.amplification else cohort / users
    # Zero-out: a user's update or nothing in its place moves a sum, and a single update, by one clip norm. Cohorts of a
    # fixed size and local noise are counted with two: more than zero-out asks for, and then epsilon also holds where
    # one user's examples are replaced by any others, since two updates may lie two clip norms apart.
    replaced = sampler != "poisson" and cohort < users
    moved = 2 if settings.noise == "local" or replaced else 1
    multiplier = settings.noise_multiplier
    if multiplier is None:
        assert settings.epsilon is not None
        in_turns = settings.noise == "local" and sampler == "shuffled"  # everybody once a turn
        told = ceil(rounds / ceil(users / cohort)) if in_turns else rounds
        multiplier = moved * multiplier_for(
            settings.epsilon, rate=rate, rounds=told, delta=settings.delta, progress=progress
        )
    return Plan(
        settings=settings,
        clip=clip_of(settings),
        noise_multiplier=multiplier,
        release=Release(rate, multiplier / moved),
        expected=float(cohort),
        budget=None if settings.budget is None else Budget(settings.budget, settings.delta),
    )


def noise_to_clip(plan: Plan, sizes: Mapping[str, int]) -> tuple[str, float]:
    """How long the noise on a round's average update is, in clip norms, for the group of parameters where it is most;
    `sizes` says how many numbers each parameter has. An average of updates is at most one clip norm long."""
    deviations = plan.clip.deviations(sizes, noise_multiplier=plan.noise_multiplier)
    squares = dict.fromkeys(plan.clip.norms, 0.0)
    for name, size in sizes.items():
        squares[plan.clip.group_of(name)] += size * deviations[name] ** 2
    clients = sqrt(plan.expected) if plan.local else plan.expected  # each adds noise of their own, or the server once
    ratios = {group: sqrt(square) / clients / plan.clip.norms[group] for group, square in squares.items()}
    group = max(ratios, key=lambda name: ratios[name])
    return group, ratios[group]
