"""Notices before and after a run, one line each."""

from __future__ import annotations

from homespun.core.roles import SHARED
from homespun.core.statistics import sums
from homespun.data.splits import original, sample_users
from homespun.data.table import describe_left_out
from homespun.data.truncation import measure_truncation
from homespun.privacy.accounting import compute_epsilon
from homespun.privacy.settings import noise_to_clip_ratio
from homespun.runs.run import Run


def before(run: Run) -> list[str]:
    """Notices on users who do not take part, on missing test parts, on truncated texts, on the cost of a private run,
    and on noise larger than the updates."""
    return [*_absent(run), *_untested(run), *_cut(run), *_cost(run), *_noise_level(run)]


def after(run: Run) -> list[str]:
    """The privacy that a private run has spent."""
    if run.dp is None or run.dp.account is None:
        return []
    account = run.dp.account
    delta = account.plan.settings.delta
    spent = compute_epsilon(
        account.spending(rounds=run.state.round), delta=delta, accountant="coarse"
    )  # fast, and not below the report
    return [f"privacy: spent epsilon {spent:.2f} at delta {delta:g} in {run.state.round} rounds"]


def _absent(run: Run) -> list[str]:
    left_out = getattr(original(run.federation), "left_out", None)
    return [describe_left_out(left_out)] if left_out is not None and left_out.users else []


def _untested(run: Run) -> list[str]:
    federation, settings = run.federation, run.settings
    positions = sample_users(federation, at_most=settings.evaluate_users, seed=settings.seed)
    if any(len(run.clients.split(federation, position).test) for position in positions):
        return []
    parts = "conversations" if settings.split_by == "conversation" else "examples"
    return [f"warning: no user has enough {parts} for a test part, so this run will not be evaluated"]


def _cut(run: Run) -> list[str]:
    if run.method.model.window is None:
        return []
    cut = measure_truncation(run.federation, run.method.model.window)
    return [str(cut)] if cut.share else []


def _cost(run: Run) -> list[str]:
    if run.dp is None or run.dp.account is None:
        return []
    plan, rounds = run.dp.account.plan, run.total_rounds
    settings, spending = plan.settings, run.dp.account.spending(rounds=rounds)
    cost = settings.epsilon or compute_epsilon(spending, delta=settings.delta, accountant="coarse")
    return [
        f"privacy: {rounds} rounds cost epsilon {cost:.2f} at delta {settings.delta:g} "
        f"(noise {plan.noise_multiplier:.2f} x clip)"
    ]


def _noise_level(run: Run) -> list[str]:
    if run.dp is None or run.dp.account is None:
        return []
    plan = run.dp.account.plan
    shared = (*run.built.partition.names(*SHARED), *sums(run.method.local.statistics))
    group, ratio = noise_to_clip_ratio(plan, {name: run.built.initial[name].numel() for name in shared})
    if ratio <= 1:
        return []
    norm = plan.clip.norms[group]
    which = "" if group == "*" else f" of {group!r}"
    return [
        f"warning: the noise on a round's average update{which} is {ratio:.1f} times the clip norm ({norm:g}). "
        "Training may make little progress. To reduce it, use more clients per round (cohort), fewer rounds, a larger "
        "epsilon or fewer shared parameters"
    ]
