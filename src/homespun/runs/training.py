"""Loads data, trains, reopens runs and collects their results, for Python and for the commands."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from homespun.core.errors import (
    DataError,
    MethodError,
    RunError,
    SettingsError,
    UnknownNameError,
    UntrustedError,
    raise_faults,
)
from homespun.core.messages import METRICS
from homespun.core.method import Method
from homespun.core.progress import Progress, Show, silent, start_count
from homespun.core.records import RoundRecord
from homespun.core.roles import Role
from homespun.core.settings import current_names, parse, unknown_setting
from homespun.data import DEFAULT_COLUMNS, Columns, load_federation, on_hub
from homespun.data.federation import Federation
from homespun.data.source import DataSettings
from homespun.evaluation.classification import Evaluation
from homespun.evaluation.language import TextEvaluation
from homespun.privacy.accounting import ADJACENCY, compute_bounds
from homespun.runs.controls import BASE_MODEL, IN_CONTEXT, evaluate_personal_share, newcomer_controls
from homespun.runs.evaluate import evaluate, evaluate_adapted_reusing, evaluate_newcomers
from homespun.runs.open_run import SETTINGS_FILE, open_run
from homespun.runs.run import Run
from homespun.runs.saved_settings import SavedSettings
from homespun.runs.settings import RunSettings
from homespun.system.json_files import read_json
from homespun.system.method_loading import method_module, settings_command
from homespun.system.trust import Names, allows, named_by_user, vouched_for

LENGTH_SETTINGS = {"rounds", "epochs"}  # alternatives: setting one replaces the default of the other


def load(source: Any, *, columns: Columns = DEFAULT_COLUMNS, **settings: Any) -> Federation:
    """Load a built-in corpus by name, a file, or data in memory: a list of dicts, a pandas frame, a pyarrow table or a
    Hugging Face data set. For instance `load("dialects", users=200)`.

    Example:
        >>> load("dialects", users=12)
        <Federation dialects: 12 users, 8 labels>
        >>> load([{"user": "ada", "text": "hello", "label": "greeting"}]).users[0]
        'ada'
    """
    if not isinstance(source, str | os.PathLike):
        return load_federation(source, columns=columns, settings=settings)
    named = {name: value for name, value in asdict(columns).items() if value != getattr(DEFAULT_COLUMNS, name)}
    asked = {"source": str(source), "columns": named, "settings": settings}
    data = parse(DataSettings, asked, where="load").resolved()
    # A run on it can then be reopened by its folder alone.
    loaded: Federation = replace(data.load(), loaded_by=data)  # type: ignore[type-var]
    return loaded


def as_federation(data: Any, columns: Columns = DEFAULT_COLUMNS) -> Federation:
    """Return a federation unchanged; load anything else."""
    if not (hasattr(data, "fingerprint") and callable(getattr(data, "examples", None))):
        return load(data, columns=columns)
    if columns != DEFAULT_COLUMNS:
        raise SettingsError("columns: a federation is loaded already. Pass columns to load.")
    federation: Federation = data
    return federation


@dataclass(frozen=True)
class CurvePoint:
    """A point of the learning curve."""

    round: int
    epoch: float
    evaluation: Evaluation | TextEvaluation

    def to_dict(self) -> dict[str, Any]:
        per_user = ("user_values", "user_loss", "user_tokens", "user_counts")  # too large to store for every point
        curve = {name: value for name, value in self.evaluation.to_dict().items() if name not in per_user}
        return {"kind": "evaluation", "round": self.round, "epoch": self.epoch, **curve}


@named_by_user()
def default_run_settings(method: str) -> dict[str, Any]:
    """The run settings that the method's file declares as its defaults (`RUN`), usually those of its paper."""
    return dict(getattr(method_module(method), "RUN", {}))


@named_by_user()
def separate_settings(method: str, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate settings of the run, added to the method's defaults, from settings of the method. Unknown names are an
    error."""
    known = method_module(method).Settings.model_fields
    both = sorted(set(known) & set(RunSettings.model_fields))
    if both:
        raise MethodError(f"{method}: {', '.join(both)} is a setting of the run already. Rename the method's setting.")
    values = current_names(values, {*known, *RunSettings.model_fields})
    unknown = [name for name in values if name not in RunSettings.model_fields and name not in known]
    if unknown:
        names, listed_by = sorted({*RunSettings.model_fields, *known}), settings_command(method)
        faults = [unknown_setting(name, names, listed_by=listed_by) for name in unknown]
        raise_faults(SettingsError, f"training {method}", faults)
    given = LENGTH_SETTINGS & set(values)
    defaults = {
        name: value for name, value in default_run_settings(method).items() if not given or name not in LENGTH_SETTINGS
    }
    if "base_method" in known:  # a wrapper splits as the method that it wraps
        base = values.get("base_method", known["base_method"].default)
        defaults = {**{name: one for name, one in default_run_settings(base).items() if name == "split_by"}, **defaults}
    run = {**defaults, **{name: value for name, value in values.items() if name in RunSettings.model_fields}}
    return run, {name: value for name, value in values.items() if name in known}


def train(
    method: str,
    data: Any,
    *,
    folder: str | Path | None = None,
    columns: Columns = DEFAULT_COLUMNS,
    progress: Show = silent,
    **settings: Any,
) -> Run:
    """Train to the end and return the run. `data` is a federation or anything that `load` takes. Without a folder, the
    run's files are deleted with the run.

    `progress` is called with the progress of training and, afterwards, of other long work on the run, such as
    `evaluate(run)`. For instance `progress=print`.

    Example:
        >>> with train("fedavg", load("dialects", users=12), rounds=2, workers=0) as run:
        ...     run
        <Run of fedavg on dialects/participants: 12 users, round 2>
    """
    run = prepare(method, as_federation(data, columns), folder=folder, settings=settings, progress=progress)
    for event in train_and_evaluate(run):
        if isinstance(event, RoundRecord):
            progress(Progress("training", event.round, run.total_rounds))
    return run


@named_by_user()
def prepare(
    method: str,
    federation: Federation,
    *,
    folder: str | Path | None,
    settings: Mapping[str, Any],
    data: DataSettings | None = None,
    progress: Show = silent,
) -> Run:
    """Open a new run, or the one in `folder`, ready for its next round. Without a folder, in a temporary one."""
    run_settings, method_settings = separate_settings(method, settings)
    temporary = None
    if folder is None:
        temporary = tempfile.TemporaryDirectory(prefix="homespun-")
        folder = temporary.name
    run = open_run(
        folder,
        method=method,
        federation=federation,
        settings=parse(RunSettings, run_settings, where="run", listed_by=settings_command(method)),
        method_settings=method_settings,
        data=data,
        progress=progress,
        temporary=temporary,  # removed with the run
    )
    if run.data is not None and on_hub(run.data.source):
        allows("hub", run.data.source, name=run.data.source)
    return run


def reopen(
    folder: str | Path,
    *,
    federation: Any = None,
    read_only: bool = True,
    trust: Names = (),
    progress: Show = silent,
) -> Run:
    """Open the run in a folder at its last committed round. Its corpus is loaded again, or given as `federation`.

    A folder may come from anyone. A method file that it names runs only if you trained with it on this machine, and a
    data set or base model of the Hugging Face hub is fetched only if you used it before, or if you name it in `trust`.
    `progress` is called with the progress of long work on the run.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     train("fedavg", load("dialects", users=12), rounds=1, workers=0, folder=folder).close()
        ...     with reopen(folder) as run:
        ...         run.state.round
        1
    """
    with vouched_for(trust):
        return _reopen(folder, federation, read_only=read_only, progress=progress)


def _reopen(folder: str | Path, federation: Any, *, read_only: bool, progress: Show) -> Run:
    found = read_json(Path(folder) / SETTINGS_FILE, missing=_missing_run_message(Path(folder)))
    absent = sorted({"method", "method_settings", "run", "data", "data_fingerprint"} - found.keys())
    if absent:
        raise RunError(f"{folder}: {SETTINGS_FILE} has no {', '.join(absent)}. Restore it from a copy.")
    saved = parse(SavedSettings, found, where=f"{folder}: {SETTINGS_FILE}")
    data = saved.data
    federation = _load_corpus(folder, data) if federation is None else as_federation(federation)
    return open_run(
        folder,
        method=saved.method,
        federation=federation,
        settings=parse(RunSettings, saved.run, where=f"{folder}: run"),
        method_settings=saved.method_settings,
        data=data,
        read_only=read_only,
        progress=progress,
        data_fingerprint=saved.data_fingerprint,
    )


def _load_corpus(folder: str | Path, data: DataSettings | None) -> Federation:
    if data is None:
        raise RunError(
            f"{folder}: its data were given in Python, not as a file. Pass them again: "
            "reopen(folder, federation=homespun.load(rows)), or the federation itself."
        )
    if on_hub(data.source) and not allows("hub", data.source, name=data.source):
        raise UntrustedError(
            f"{folder}: its corpus is the data set {data.source!r} of the Hugging Face hub, and you have not trained "
            f"on it before. To allow the download, name it: --trust {data.source}, or in Python trust={data.source!r}."
        )
    try:
        return data.load()
    except (DataError, UnknownNameError, OSError) as error:  # OSError: for instance a name that is too long
        remedy = f"If it was moved, enter its new path in the {SETTINGS_FILE} of that folder, under data, source."
        raise RunError(f"{error} The run in {folder} was trained on it. {remedy}") from None


def _missing_run_message(folder: Path) -> str:
    runs = sorted(str(found.parent) for found in folder.glob(f"runs/*/*/{SETTINGS_FILE}"))
    inside = f" It is a comparison; its runs are {', '.join(runs)}." if runs else ""
    return f"{folder}: no run here ({SETTINGS_FILE} is missing).{inside}"


def train_and_evaluate(run: Run) -> Iterator[RoundRecord | CurvePoint]:
    """Train the remaining rounds. Yields every round's record, and an evaluation where one is due and not recorded."""
    every = run.settings.evaluate_every or max(1, run.total_rounds // 20)
    recorded = {entry["round"] for entry in run.history() if entry["kind"] == "evaluation"}

    def due(round: int) -> bool:
        return round not in recorded and (round % every == 0 or round == run.total_rounds)

    def evaluate_point() -> CurvePoint:
        point = CurvePoint(run.state.round, run.state.round / run.schedule.rounds_per_epoch, evaluate(run, "eval"))
        run.record(point.to_dict())
        return point

    if due(run.state.round):  # before the first round, or after a kill between a round and its evaluation
        yield evaluate_point()
    for record in run.rounds():
        yield record
        if due(record.round):
            yield evaluate_point()


def summarize_privacy(run: Run) -> dict[str, Any] | None:
    """The differential privacy of the run and the privacy cost of its rounds. None: it had none."""
    if run.dp is None or run.dp.account is None:
        return None
    plan, account = run.dp.account.plan, run.dp.account
    settings, delta = plan.settings, plan.settings.delta
    spending = account.spending(rounds=run.state.round)
    ((release, rounds),) = spending.items()
    done = start_count(run.progress, "privacy accounting", total=1)
    cost = compute_bounds(spending, delta=delta)
    found = {
        "adjacency": ADJACENCY,
        "public_filters": list(account.public),
        "noise": settings.noise,
        "clip": plan.clip.norms,
        "statistics_clip": plan.clip.metrics,
        "noise_multiplier": plan.noise_multiplier,
        "noise_norms": {
            "parameters": plan.noise_multiplier * plan.clip.noise,
            "statistics": plan.noise_multiplier * plan.clip.metrics_noise,
        },
        "rate": release.rate,
        "counted_noise": release.noise_multiplier,  # in units of one user's sensitivity
        "releases": rounds,
        "delta": delta,
        "epsilon": cost.epsilon,
        "epsilon_pld": cost.pld,
        "epsilon_rdp": cost.rdp,
        "insecure": settings.insecure,
    }
    done(1)
    return found


def collect_results(run: Run) -> dict[str, Any]:
    """The contents of `results.json` for a finished run."""
    history = run.history()
    test = evaluate(run, run.scoring.scored_part)
    adapted = evaluate_adapted_reusing(run, test)
    controls = {name: one.to_dict() for name, one in newcomer_controls(run).items()}
    personal = evaluate_personal_share(run)
    return {
        "method": run.method.name,
        "identity": run.vault.identity,
        "pooled": run.method.local.pooled,
        "parameters": {
            **{role.value: run.built.count(role) for role in Role},
            "added_at_home": run.method.personalize.adds_at_most,
        },
        "settings": run.method.settings.model_dump(mode="json"),
        "run": run.settings.model_dump(mode="json"),
        "task": asdict(run.method.task),
        "scoring": {name: getattr(run.scoring, name) for name in ("percent", "lower_is_better")},
        "rounds": [entry for entry in history if entry["kind"] == "round"],
        "curve": [entry for entry in history if entry["kind"] == "evaluation"],
        "eval": evaluate(run, "eval").to_dict(),
        "test": test.to_dict(),
        "adapted": {count: found.to_dict() for count, found in adapted.items()},
        "newcomers": {count: found.to_dict() for count, found in evaluate_newcomers(run).items()},
        "newcomers_untouched": controls.get(BASE_MODEL),
        "newcomers_in_context": {
            name.removeprefix(IN_CONTEXT): one for name, one in controls.items() if name.startswith(IN_CONTEXT)
        },
        "personal": personal and {state: one.to_dict() for state, one in personal.items()},
        "privacy": summarize_privacy(run),
        "released": [
            "parameter updates",
            *_uploaded_metrics(run),
            *statistic_labels(run.method),
            *dict.fromkeys(entry["statistic"] for entry in history if entry["kind"] == "reranking"),
        ],
    }


def _uploaded_metrics(run: Run) -> list[str]:
    """What clients upload besides parameters. Under differential privacy every weight is 1, and metrics are uploaded
    only if they have a clip norm."""
    privacy = run.settings.privacy
    if privacy is None:
        return ["weight", *METRICS]
    return [] if privacy.metrics_clip is None else list(METRICS)


def statistic_labels(method: Method) -> list[str]:
    """Descriptions of what clients disclose besides their updates."""
    return [one.label for one in method.local.statistics.values() if one.label]
