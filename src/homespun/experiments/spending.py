"""The total privacy cost of the private runs of a comparison, which all use the same users' data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from homespun.core.errors import InputError
from homespun.privacy.accounting import Bounds, Release, compute_bounds


def total_privacy_cost(runs: Sequence[Mapping[str, Any]], *, users: int) -> dict[str, Any] | None:
    """Epsilon of all private runs on one data set, from their results; None if there are none, or if the accounting
    library is not installed. If their deltas differ, the smallest is used."""
    private = [run for run in runs if run.get("privacy")]
    if not private:
        return None
    delta = min(run["privacy"]["delta"] for run in private)
    if len(private) == 1:
        only = private[0]["privacy"]
        cost = Bounds(only.get("epsilon_pld", only["epsilon"]), only["epsilon_rdp"])
    else:
        spent: Counter[Release] = Counter()
        for run in private:
            spent[_release(run, users=users)] += run["privacy"]["releases"]
        try:
            cost = _cost(frozenset(spent.items()), delta)
        except InputError:
            return None
    return {
        "runs": len(private),
        "runs_without_privacy": len(runs) - len(private),
        "delta": delta,
        "epsilon": cost.epsilon,
        "epsilon_pld": cost.pld,
        "epsilon_rdp": cost.rdp,
    }


@lru_cache
def _cost(spent: frozenset[tuple[Release, int]], delta: float) -> Bounds:
    """Cached: several configurations often cost the same, and accounting takes seconds."""
    return compute_bounds(dict(spent), delta=delta)


def _release(run: Mapping[str, Any], *, users: int) -> Release:
    """The release that accounting uses for a round. Earlier results have only the noise multiplier, in clip norms."""
    privacy, settings = run["privacy"], run["run"]
    counted = privacy.get("counted_noise")
    if counted is None:
        fixed = settings["sampler"] != "poisson" and settings["cohort"] != "all" and settings["cohort"] < users
        counted = privacy["noise_multiplier"] / (2 if privacy["noise"] == "local" or fixed else 1)
    return Release(privacy["rate"], counted)
