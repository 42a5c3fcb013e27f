"""How much less perplexity one configuration has than the others: results in, differences with intervals out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from homespun.evaluation import language
from homespun.evaluation.pooling import summed_by_user

COMPARED = ("test", "adapted", "newcomers")  # whom a difference is stated for


def differences(
    configurations: Mapping[str, Sequence[Mapping[str, Any]]], controls: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """The first configuration's perplexity against every other's and the untouched base; None for labels."""
    ours, *others = configurations
    runs = configurations[ours]
    if runs[0]["test"]["metric"] != "perplexity":
        return None
    base = [
        {**run, "test": control["untouched"], "adapted": {}, "newcomers": {"0": run.get("newcomers_untouched")}}
        for run, control in zip(runs, controls, strict=True)
    ]

    def against(theirs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {who: difference(runs, theirs, who=who) for who in COMPARED}

    return {
        "ours": ours,
        "configurations": {key: against(configurations[key]) for key in others},
        "controls": {"untouched": against(base)},
    }


def difference(
    ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]], *, who: str
) -> dict[str, Any] | None:
    """In percent, with an interval over users; None where a side is missing or read other tokens."""
    sides = []
    for runs in (ours, theirs):
        evaluations = [with_all_samples(run, who) for run in runs]
        if any(one is None for one in evaluations):
            return None
        part = "newcomers" if who == "newcomers" else "participants"
        people = [(run.get("positions") or {}).get(part) for run in runs]
        sides.append(summed_by_user([one for one in evaluations if one is not None], people))
    left, right = sides
    if not left.users or left.user_tokens != right.user_tokens:
        return None
    found = asdict(language.compare(left, right))
    if left.users < 2:  # nobody else to draw
        found |= {"low": None, "high": None}
    return {**found, "users": left.users}


def with_all_samples(run: Mapping[str, Any], who: str) -> Mapping[str, Any] | None:
    """What somebody reaches with all own samples; where samples change nothing, what they have anyway."""
    if who == "test":
        return run["test"]
    found = run.get(who) or {}
    return found.get("all") or found.get("0") or (run["test"] if who == "adapted" else None)
