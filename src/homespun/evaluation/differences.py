"""Differences in perplexity between configurations, with confidence intervals over users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from homespun.evaluation import language
from homespun.evaluation.pooling import sum_losses_by_user

COMPARED = ("test", "adapted", "newcomers")  # evaluations with a stated difference
IN_CONTEXT = "in_context_15"  # the control with most of the user's own sentences
FEW = ("0", "1")  # numbers of own samples that the largest one is compared with


def differences(
    configurations: Mapping[str, Sequence[Mapping[str, Any]]], controls: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Compare the perplexity of the first configuration with that of all others, of the base model, and of the base
    model with the user's own sentences in its context. None for labels."""
    ours, *others = configurations
    runs = configurations[ours]
    if runs[0]["test"]["metric"] != "perplexity":
        return None
    base_model = [
        _control(run, control.get("untouched"), run.get("newcomers_untouched"))
        for run, control in zip(runs, controls, strict=True)
    ]
    in_context = [
        _control(run, control.get(IN_CONTEXT), (run.get("newcomers_in_context") or {}).get("15"))
        for run, control in zip(runs, controls, strict=True)
    ]

    def against(theirs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {who: difference(runs, theirs, who=who) for who in COMPARED}

    return {
        "ours": ours,
        "configurations": {key: against(configurations[key]) for key in others},
        "controls": {"untouched": against(base_model), IN_CONTEXT: against(in_context)},
        "unadapted": {key: _against_unadapted(runs, configurations[key]) for key in others},
    }


def _control(run: Mapping[str, Any], known: Any, newcomers: Any) -> dict[str, Any]:
    """A run's results, replaced by those of a control that does not adapt."""
    return {**run, "test": known, "adapted": {}, "newcomers": {"0": newcomers}}


def sample_gains(configurations: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any] | None:
    """The gain from own samples for each configuration: the largest number but `all`, compared with FEW. None for
    labels."""
    if next(iter(configurations.values()))[0]["test"]["metric"] != "perplexity":
        return None

    most = most_samples([run for runs in configurations.values() for run in runs])

    def changed(runs: Sequence[Mapping[str, Any]], who: str, few: str) -> dict[str, Any] | None:
        if int(most) <= int(few):
            return None
        many, fewer = ([(run.get(who) or {}).get(count) for run in runs] for count in (most, few))
        return _compared((many, fewer), (_user_positions(runs, who),) * 2)

    return {
        key: {who: {few: changed(runs, who, few) for few in FEW} for who in ("adapted", "newcomers")}
        for key, runs in configurations.items()
    }


def most_samples(found: Sequence[Mapping[str, Any]]) -> str:
    """The largest number of own samples, except `all`, that one of the runs, or of their summaries, has a result of."""
    counts = (count for one in found for who in ("adapted", "newcomers") for count in one.get(who) or {})
    return max((count for count in counts if count.isdigit()), key=int, default="0")


def personal_differences(configurations: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The increase in perplexity of participants with the private parameters of a new user, or of another participant,
    instead of their own. Configurations without private parameters are left out."""

    def worse(runs: Sequence[Mapping[str, Any]], state: str) -> dict[str, Any] | None:
        sides = [run["personal"][state] for run in runs], [run["personal"]["own"] for run in runs]
        return _compared(sides, (_user_positions(runs, "test"),) * 2)

    return {
        key: {state: worse(runs, state) for state in ("prior", "another")}
        for key, runs in configurations.items()
        if all(run.get("personal") for run in runs)
    }


def difference(
    ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]], *, who: str
) -> dict[str, Any] | None:
    """The difference between two configurations, both with all own samples."""
    left, right = ([with_all_samples(run, who) for run in runs] for runs in (ours, theirs))
    return _compared((left, right), (_user_positions(ours, who), _user_positions(theirs, who)))


def _against_unadapted(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Ours with all own samples, theirs with none: a shared prefix is personal once a client has adapted it."""
    found = {}
    for who in ("adapted", "newcomers"):
        sides = [with_all_samples(run, who) for run in ours], [without_samples(run, who) for run in theirs]
        found[who] = _compared(sides, (_user_positions(ours, who), _user_positions(theirs, who)))
    return found


def _user_positions(runs: Sequence[Mapping[str, Any]], who: str) -> list[Any]:
    part = "newcomers" if who == "newcomers" else "participants"
    return [(run.get("positions") or {}).get(part) for run in runs]


def _compared(
    sides: tuple[Sequence[Mapping[str, Any] | None], Sequence[Mapping[str, Any] | None]],
    positions: tuple[Sequence[Any], Sequence[Any]],
) -> dict[str, Any] | None:
    """The difference in percent, with an interval over users; None if a side is missing or scored other tokens."""
    if any(one is None for side in sides for one in side):
        return None
    left, right = (
        sum_losses_by_user([one for one in side if one is not None], who)
        for side, who in zip(sides, positions, strict=True)
    )
    if not left.users or left.user_tokens != right.user_tokens:
        return None
    return {**asdict(language.compare(left, right)), "users": left.users}


def with_all_samples(run: Mapping[str, Any], who: str) -> Mapping[str, Any] | None:
    """The evaluation with all own samples; if samples have no effect, the one without."""
    if who == "test":
        return run["test"]
    found = run.get(who) or {}
    return found.get("all") or found.get("0") or (run["test"] if who == "adapted" else None)


def without_samples(run: Mapping[str, Any], who: str) -> Mapping[str, Any] | None:
    """The evaluation before any adaptation."""
    return (run.get(who) or {}).get("0") or (run["test"] if who == "adapted" else None)
