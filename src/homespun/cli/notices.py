"""What a person should know before a run starts and after it ended, one line each."""

from __future__ import annotations

from homespun.core.roles import SHARED
from homespun.data.truncation import measure_truncation
from homespun.privacy.accounting import epsilon
from homespun.privacy.settings import noise_to_clip
from homespun.runs.run import Run


def before(run: Run) -> list[str]:
    """How many texts are cut; what a private run will cost, and whether its noise drowns what clients send."""
    return [*_cut(run), *_cost(run), *_loud_noise(run)]


def after(run: Run) -> list[str]:
    """What a private run has cost so far."""
    if run.dp is None or run.dp.account is None:
        return []
    account = run.dp.account
    delta = account.plan.settings.delta
    spent = epsilon(
        account.spending(rounds=run.state.round), delta=delta, way="coarse"
    )  # not less than the report says, and at once
    return [f"private: spent epsilon {spent:.2f} at delta {delta:g} in {run.state.round} rounds"]


def _cut(run: Run) -> list[str]:
    if run.method.window is None:
        return []
    cut = measure_truncation(run.federation, run.method.window)
    return [str(cut)] if cut.share else []


def _cost(run: Run) -> list[str]:
    if run.dp is None or run.dp.account is None:
        return []
    plan, rounds = run.dp.account.plan, run.total_rounds
    settings, spending = plan.settings, run.dp.account.spending(rounds=rounds)
    cost = settings.epsilon or epsilon(spending, delta=settings.delta, way="coarse")
    return [
        f"private: {rounds} rounds cost epsilon {cost:.2f} at delta {settings.delta:g} "
        f"(noise {plan.noise_multiplier:.2f} x clip)"
    ]


def _loud_noise(run: Run) -> list[str]:
    if run.dp is None or run.dp.account is None:
        return []
    plan = run.dp.account.plan
    shared = run.built.partition.names(*SHARED)
    group, ratio = noise_to_clip(plan, {name: run.built.initial[name].numel() for name in shared})
    if ratio <= 1:
        return []
    norm = plan.clip.norms[group]
    which = "" if group == "*" else f" of {group!r}"
    return [
        f"the noise on a round's average update{which} is {ratio:.1f} times as long as the longest update a client may "
        f"send (clip norm {norm:g}): expect to learn slowly or nothing. More clients a round (cohort), fewer rounds, a "
        "larger epsilon or fewer shared parameters make it smaller"
    ]
