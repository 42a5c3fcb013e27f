"""`results.json`: all results of a finished run, or of a comparison of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from homespun.analysis.assignments import assignments
from homespun.analysis.projections import project_users
from homespun.core.errors import RunError
from homespun.data.corpus_report import inspect_corpus
from homespun.data.federation import Federation
from homespun.data.source import DataSettings
from homespun.data.splits import Subset, original_name, sample_users
from homespun.evaluation.differences import differences, personal_differences, sample_gains
from homespun.evaluation.metrics import mean_and_deviation
from homespun.evaluation.pooling import COLUMNS, average_evaluations, merge_evaluations
from homespun.experiments.reply_quality import ensure_reranker, reply_results
from homespun.experiments.spending import total_privacy_cost
from homespun.runs.controls import evaluate_controls
from homespun.runs.run import Run
from homespun.runs.settings import RunSettings
from homespun.runs.training import collect_results
from homespun.system.json_files import SCHEMA, read_json, versions, write_json

RESULTS_FILE = "results.json"
EVALUATION_SETTINGS = ("evaluate_users", "evaluate_examples", "evaluate_samples")  # how a run is tested
# Run settings that earlier results lack, with what they were then
ADDED_LATER = {"final_personalization": False, "evaluate_samples": None}
COUNTED_USERS = 100_000  # sub-populations of larger corpora are not counted
T = TypeVar("T")


def single_results(run: Run, data: DataSettings, *, title: str) -> dict[str, Any]:
    """The results of one run, in the form of a comparison with one configuration and one seed."""
    found = controls_of(run)
    ensure_reranker(run)
    drawn = {"seed": run.settings.seed, "fold": run.settings.fold}
    one = {
        **collect_results(run),
        **drawn,
        "positions": evaluated_positions(run),
        "maps": project_users(run),
        "assigned": assignments(run),
        "replies": reply_results(run),
    }
    described = {
        **describe_data(run.federation, data, settings=run.settings),
        "newcomers": len(run.newcomers.users),
    }
    return assemble(title, described, configurations={run.method.name: (title, [one])}, controls=[found])


def assemble(
    name: str,
    data: Mapping[str, Any],
    *,
    configurations: Mapping[str, tuple[str, list[dict[str, Any]]]],
    controls: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    runs_of, users = {key: runs for key, (_, runs) in configurations.items()}, data.get("users", 0)
    seeds = [run["seed"] for run in next(iter(runs_of.values()))]
    return {
        "schema": SCHEMA,
        "name": name,
        "versions": versions(),
        "data": data,
        "configurations": {
            key: {
                "title": title,
                "method": runs[0]["method"],
                "summary": summary(runs),
                "privacy": total_privacy_cost(runs, users=users),
                "runs": runs,
            }
            for key, (title, runs) in configurations.items()
        },
        "privacy": total_privacy_cost([run for runs in runs_of.values() for run in runs], users=users),
        "controls": {"runs": list(controls), "summary": control_summary(controls, seeds)},
        "differences": differences(runs_of, controls),
        "from_samples": sample_gains(runs_of),
        "personal": personal_differences(runs_of),
        "similarity": [],
    }


def describe_data(federation: Federation, data: DataSettings, *, settings: RunSettings) -> dict[str, Any]:
    check = inspect_corpus(federation, fractions=settings.fractions, split_by=settings.split_by, seed=settings.seed)
    return {
        **data.model_dump(mode="json"),
        "name": original_name(federation),
        "fingerprint": federation.fingerprint,
        "labels": list(federation.labels),
        "contexts": len(federation.contexts),
        "users": len(federation.users),
        "check": check.to_dict(),
        "groups": groups_of(federation),
    }


def groups_of(federation: Federation) -> dict[str, int] | None:
    """The number of users in each known sub-population; None if sub-populations are unknown."""
    users = len(federation.users)
    if not users or users > COUNTED_USERS or federation.group(0) is None:
        return None
    counts = Counter(str(federation.group(user)) for user in range(users))
    # in the order of the contexts, if the sub-populations are contexts
    names = federation.contexts if counts.keys() <= set(federation.contexts) else sorted(counts)
    return {name: counts[name] for name in names}


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    mean, deviation = mean_and_deviation(values)
    return {"mean": mean, "std": None if np.isnan(deviation) else deviation}


def _summarized(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "metric": entries[0]["metric"],
        **{column: _spread([entry[column] for entry in entries]) for column in COLUMNS},
    }


def by_seed(seeds: Sequence[int], entries: Sequence[T]) -> list[list[T]]:
    """Group the entries, one per run, by seed; the folds of a seed are together."""
    together: dict[int, list[T]] = {}
    for seed, entry in zip(seeds, entries, strict=True):
        together.setdefault(seed, []).append(entry)
    return list(together.values())


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over seeds of the values that tables show.

    The folds of a seed share most participants, whose evaluations are averaged; their newcomers are different
    users and count as one evaluation.
    """
    seeds = by_seed([run["seed"] for run in runs], runs)

    def known(*path: str) -> dict[str, Any]:
        return _summarized([average_evaluations([reduce(getitem, path, run) for run in folds]) for folds in seeds])

    def new(*path: str) -> dict[str, Any]:
        return _summarized([merge_evaluations([reduce(getitem, path, run) for run in folds]) for folds in seeds])

    return {
        "eval": known("eval"),
        "test": known("test"),
        "adapted": {count: known("adapted", count) for count in runs[0]["adapted"]},
        "newcomers": {count: new("newcomers", count) for count in runs[0]["newcomers"]},
        "newcomers_untouched": new("newcomers_untouched") if runs[0].get("newcomers_untouched") else None,
        "newcomers_in_context": {
            count: new("newcomers_in_context", count) for count in runs[0].get("newcomers_in_context") or {}
        },
        "personal": {state: known("personal", state) for state in runs[0].get("personal") or {}},
        "rounds": len(runs[0]["rounds"]),
        "seconds_per_round": _spread([_seconds(run["rounds"]) for run in runs]),
    }


def _seconds(rounds: Sequence[Mapping[str, Any]]) -> float:
    """Mean seconds per round; NaN for a private run, which does not record them."""
    return float(np.mean([np.nan if entry["seconds"] is None else entry["seconds"] for entry in rounds]))


def evaluated_positions(run: Run) -> dict[str, list[int]] | None:
    """Positions in the corpus of the users of an evaluation, in its order; None if it is not by user.

    Seeds and folds withhold different users, so the index in an evaluation does not identify a user.
    """
    if not run.scoring.by_user:
        return None

    def scored(federation: Federation) -> list[int]:
        chosen = sample_users(federation, at_most=run.settings.evaluate_users, seed=run.settings.seed)
        batches = {place: run.clients.encode(federation, place, run.scoring.scored_part) for place in chosen}
        able = [place for place, batch in batches.items() if len(next(iter(batch.values())))]
        return [int(federation.positions[place]) for place in able] if isinstance(federation, Subset) else able

    return {"participants": scored(run.federation), "newcomers": scored(run.newcomers)}


def controls_of(run: Run) -> dict[str, Any]:
    return {name: found.to_dict() for name, found in evaluate_controls(run).items()}


def control_summary(controls: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    return {
        name: _summarized([average_evaluations([one[name] for one in folds]) for folds in by_seed(seeds, controls)])
        for name in controls[0]
    }


def write_results(folder: Path, found: Mapping[str, Any]) -> Path:
    return write_json(folder / RESULTS_FILE, found)


def read_results(folder: Path) -> dict[str, Any]:
    found = read_json(
        folder / RESULTS_FILE, missing=f"{folder}: no {RESULTS_FILE} in this folder. Train the run to its end first."
    )
    if not {"name", "data", "configurations", "controls"} <= found.keys():
        raise RunError(
            f"{folder / RESULTS_FILE}: not the results of a run, or incomplete. Train the run to its end again."
        )
    return found


def only_run(folder: Path) -> dict[str, Any]:
    """The results of the one run in this folder."""
    try:
        ((run,),) = (only["runs"] for only in read_results(folder)["configurations"].values())
        whole = (
            run["rounds"]
            and {"rounds", "epochs", *EVALUATION_SETTINGS} <= {*run["run"], *ADDED_LATER}
            and run["identity"].keys()
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise RunError(
            f"{folder / RESULTS_FILE}: not the results of one run, or written by an earlier version of homespun. "
            "Remove the file: it will be written again."
        )
    return {**run, "run": {**ADDED_LATER, **run["run"]}}
