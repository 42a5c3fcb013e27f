"""What tables of next words compare: configurations after personalization, and models before it, with their counts.

Scored are new users or, if none were withheld, participants.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from homespun.evaluation.next_word_intervals import PooledCounts, resample, sum_counts
from homespun.report.few_shot import in_order
from homespun.report.score_tables import title_of

Runs: TypeAlias = Sequence[Mapping[str, Any]]  # of one configuration

REFERENCE = "unk"  # name of the configuration that others are compared with; without it, the first one
METRIC = "EMR3"
NO_SAMPLES = "0"
ADDED = "added_at_home"  # parameters that only a personalized model has


@dataclass(frozen=True)
class System:
    """A configuration, or a model before personalization."""

    title: str
    counts: PooledCounts
    parameters: int | None  # of a user's model; None: not recorded
    key: str = ""  # of the configuration; empty: before personalization


def systems(results: Mapping[str, Any]) -> list[System]:
    """All configurations, each after the model it personalizes if that was not shown before. Empty without next-word
    runs."""
    every = configurations(results)
    starts = {key: _suggested(runs) for key, runs in every.items() if _is_personalized(runs)}
    same_start = len({json.dumps(start) for start in starts.values()}) == 1
    made: list[tuple[str, np.ndarray, int | None, str]] = []
    known: list[Any] = []
    for key, runs in every.items():
        title, start = title_of(results, key), starts.get(key)
        if start is not None and start not in known:  # configurations may share their federated training
            known.append(start)
            start_title = "Not personalized" if same_start else f"{title}, not personalized"
            made.append((start_title, counts_of(runs, NO_SAMPLES), _parameters(runs, personalized=False), ""))
        made.append((title, counts_of(runs, most_samples(runs)), _parameters(runs, personalized=True), key))
    pooled = resample([counts for _, counts, *_ in made])
    return [System(title, one, count, key) for (title, _, count, key), one in zip(made, pooled, strict=True)]


def reference_of(shown: Sequence[System]) -> System:
    every = {one.key: one for one in shown if one.key}
    return every.get(REFERENCE) or next(iter(every.values()))


def configurations(results: Mapping[str, Any]) -> dict[str, Runs]:
    """The runs of each configuration that suggests next words; if some score new users, of these only."""
    found = {
        key: one["runs"]
        for key, one in results.get("configurations", {}).items()
        if all((run.get("test") or {}).get("metric") == METRIC for run in one["runs"])
    }
    return {key: runs for key, runs in found.items() if sample_numbers(runs)} or found


def sample_numbers(runs: Runs) -> list[str]:
    """The numbers of own samples with which the new users of all runs were scored, ascending. Empty: participants."""
    return in_order(set.intersection(*(set(run.get("newcomers") or {}) for run in runs)))


def most_samples(runs: Runs) -> str | None:
    """The largest number of own samples of new users; None: participants are scored."""
    return next(reversed(sample_numbers(runs)), None)


def counts_of(runs: Runs, samples: str | None) -> np.ndarray:
    """The counts [users, COUNTS] of new users with this number of own samples; None: those of participants."""
    part = "participants" if samples is None else "newcomers"
    evaluations = [run["test"] if samples is None else run["newcomers"][samples] for run in runs]
    return sum_counts(evaluations, [(run.get("positions") or {}).get(part) for run in runs])


def _is_personalized(runs: Runs) -> bool:
    """Whether new users were scored before and after personalization."""
    return sample_numbers(runs)[:1] == [NO_SAMPLES] and len(sample_numbers(runs)) > 1


def _suggested(runs: Runs) -> list[Any]:
    """What tells models before personalization apart: what each suggests to each user."""
    counts = [run["newcomers"][NO_SAMPLES]["user_counts"] for run in runs]
    return [[one[name] for name in ("oov", "hits", "saved_keys")] for one in counts]


def _parameters(runs: Runs, *, personalized: bool) -> int | None:
    found = runs[0].get("parameters")
    return None if not found else sum(found[name] for name in found if personalized or name != ADDED)
