"""Train and evaluate from Python, and what the commands call."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from homespun.core.errors import (
    DataError,
    MethodError,
    RunError,
    SettingsError,
    UnknownNameError,
    UntrustedError,
    nearest,
    raise_faults,
)
from homespun.core.messages import METRICS
from homespun.core.method import Method
from homespun.core.progress import Progress, Show, silent, start_count
from homespun.core.records import RoundRecord
from homespun.core.roles import Role
from homespun.core.settings import current_names, parse, unknown_setting
from homespun.data import DEFAULT_COLUMNS, Columns, load_federation, on_hub
from homespun.data.columns import look_like_names
from homespun.data.federation import Federation
from homespun.data.source import DataSettings
from homespun.evaluation.classification import Evaluation
from homespun.evaluation.language import TextEvaluation
from homespun.privacy.accounting import ADJACENCY, compute_bounds
from homespun.runs.controls import IN_CONTEXT, newcomer_controls, personal_share
from homespun.runs.evaluate import adapted_from, evaluate, evaluate_newcomers
from homespun.runs.open_run import SETTINGS_FILE, open_run
from homespun.runs.run import Run
from homespun.runs.saved_settings import SavedSettings
from homespun.runs.settings import RunSettings
from homespun.system.json_files import read_json
from homespun.system.method_loading import method_module, settings_command
from homespun.system.trust import Names, allows, named_by_user, vouched_for

LENGTH = {"rounds", "epochs"}  # one of them says how long a run is: whoever gives one replaces the other


def load(source: Any, *, columns: Columns = DEFAULT_COLUMNS, **settings: Any) -> Federation:
    """A corpus by built-in name or file: `load("dialects", users=200)`. Or data in memory: a list of dicts, a pandas
    frame, a pyarrow table, a Hugging Face data set."""
    if not isinstance(source, str | os.PathLike):
        return load_federation(source, columns=columns, settings=settings)
    named = {name: value for name, value in asdict(columns).items() if value != getattr(DEFAULT_COLUMNS, name)}
    asked = {"source": str(source), "columns": named, "settings": settings}
    data = parse(DataSettings, asked, where="load").resolved()
    # A run on it can then be opened by its folder alone.
    loaded: Federation = replace(data.load(), loaded_by=data)  # type: ignore[type-var]
    return loaded


def federation_of(data: Any, columns: Columns = DEFAULT_COLUMNS) -> Federation:
    """A federation as it is; anything else is loaded."""
    if not (hasattr(data, "fingerprint") and callable(getattr(data, "examples", None))):
        return load(data, columns=columns)
    if columns != DEFAULT_COLUMNS:
        raise SettingsError("columns: a federation has its own. Give them to load.")
    federation: Federation = data
    return federation


@dataclass(frozen=True)
class Evaluated:
    """A point of the learning curve."""

    round: int
    epoch: float
    evaluation: Evaluation | TextEvaluation

    def to_dict(self) -> dict[str, Any]:
        each = ("user_values", "user_loss", "user_tokens")  # too much to keep for every point
        curve = {name: value for name, value in self.evaluation.to_dict().items() if name not in each}
        return {"kind": "evaluation", "round": self.round, "epoch": self.epoch, **curve}


@named_by_user()
def usual_settings(method: str) -> dict[str, Any]:
    """How the method's paper runs it, as far as its file says."""
    return dict(getattr(method_module(method), "RUN", {}))


@named_by_user()
def separate_settings(method: str, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the run, on top of those the method's paper has, and settings of the method; a name that neither
    knows is an error."""
    known = method_module(method).Settings.model_fields
    both = sorted(set(known) & set(RunSettings.model_fields))
    if both:
        raise MethodError(f"{method}: {', '.join(both)} would be a setting of both the method and the run. Rename it.")
    values = current_names(values, {*known, *RunSettings.model_fields})
    unknown = [name for name in values if name not in RunSettings.model_fields and name not in known]
    if unknown:
        names, listed_by = sorted({*RunSettings.model_fields, *known}), settings_command(method)
        faults = [unknown_setting(name, names, listed_by=listed_by) for name in unknown]
        raise_faults(SettingsError, f"training {method}", faults)
    given = LENGTH & set(values)
    usual = {name: value for name, value in usual_settings(method).items() if not given or name not in LENGTH}
    run = {**usual, **{name: value for name, value in values.items() if name in RunSettings.model_fields}}
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
    """Train to the end and return the run. `data` is a federation, or whatever `load` takes. Without a folder, the
    run's files last as long as this process.

    `progress` is called with how far the training is and, afterwards, with how far other long work on the run is, such
    as `evaluate(run)`. For instance `progress=print`.
    """
    run = prepare(method, federation_of(data, columns), folder=folder, settings=settings, progress=progress)
    for event in training(run):
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
    run_settings, method_settings = separate_settings(method, settings)
    keep = None
    if folder is None:
        keep = tempfile.TemporaryDirectory(prefix="homespun-")
        folder = keep.name
    run = open_run(
        folder,
        method=method,
        federation=federation,
        settings=parse(RunSettings, run_settings, where="run", listed_by=settings_command(method)),
        method_settings=method_settings,
        data=data,
        progress=progress,
        temporary=keep,  # removed with the run
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
    """The run in a folder, as far as it got. Its corpus is loaded as it was, or given: a federation or its data.

    A folder may come from anyone. A method file that it names runs only if you trained with it on this machine, and a
    data set or base model of the Hugging Face hub is fetched only if you used it before, or if you name it in `trust`.
    `progress` is called with how far long work on the run is.
    """
    with vouched_for(trust):
        return _reopened(folder, federation, read_only=read_only, progress=progress)


def _reopened(folder: str | Path, federation: Any, *, read_only: bool, progress: Show) -> Run:
    found = read_json(Path(folder) / SETTINGS_FILE, missing=_no_run(Path(folder)))
    absent = sorted({"method", "method_settings", "run", "data", "data_fingerprint"} - found.keys())
    if absent:
        raise RunError(f"{folder}: {SETTINGS_FILE} has no {', '.join(absent)}. Restore it from a copy.")
    saved = parse(SavedSettings, found, where=f"{folder}: {SETTINGS_FILE}")
    data = saved.data
    federation = _corpus(folder, data) if federation is None else federation_of(federation)
    if federation.fingerprint != saved.data_fingerprint:
        source = federation.name if data is None else data.source
        raise RunError(
            f"{folder}: {source} has changed since the run was trained on it. Bring back what it was, or train anew."
        )
    return open_run(
        folder,
        method=saved.method,
        federation=federation,
        settings=parse(RunSettings, saved.run, where=f"{folder}: run"),
        method_settings=saved.method_settings,
        data=data,
        read_only=read_only,
        progress=progress,
    )


def _corpus(folder: str | Path, data: DataSettings | None) -> Federation:
    if data is None:
        raise RunError(
            f"{folder}: its data were given in Python, not as a file. Give them again: "
            "reopen(folder, federation=homespun.load(rows)), or the federation itself."
        )
    if on_hub(data.source) and not allows("hub", data.source, name=data.source):
        raise UntrustedError(
            f"{folder}: its corpus is the data set {data.source!r} of the Hugging Face hub, and you have not trained "
            f"on it before. If it is to be fetched, name it: --trust {data.source}, or in Python trust={data.source!r}."
        )
    try:
        return data.load()
    except (DataError, UnknownNameError, OSError) as error:  # OSError: a name that is too long for a file
        remedy = f"If it was moved, say where to in {SETTINGS_FILE} there, under data, source."
        raise RunError(f"{error} The run in {folder} was trained on it. {remedy}") from None


def _no_run(folder: Path) -> str:
    runs = sorted(str(found.parent) for found in folder.glob(f"runs/*/*/{SETTINGS_FILE}"))
    inside = f" It is a comparison; its runs are {', '.join(runs)}." if runs else ""
    return f"{folder}: no run here ({SETTINGS_FILE} is missing).{inside}"


def training(run: Run) -> Iterator[RoundRecord | Evaluated]:
    """The rounds that are left, with an evaluation wherever one is due and not yet recorded."""
    every = run.settings.evaluate_every or max(1, run.total_rounds // 20)
    recorded = {entry["round"] for entry in run.history() if entry["kind"] == "evaluation"}

    def due(round: int) -> bool:
        return round not in recorded and (round % every == 0 or round == run.total_rounds)

    def evaluated() -> Evaluated:
        point = Evaluated(run.state.round, run.state.round / run.schedule.rounds_per_epoch, evaluate(run, "eval"))
        run.record(point.to_dict())
        return point

    if due(run.state.round):  # before the first round, or killed between a round and its evaluation
        yield evaluated()
    for record in run.rounds():
        yield record
        if due(record.round):
            yield evaluated()


def label_indices(labels: Sequence[str], known: Sequence[str]) -> np.ndarray:
    places = {label: position for position, label in enumerate(known)}
    unknown = sorted({label for label in labels if label not in places})
    if unknown and not look_like_names(unknown):
        raise DataError(
            f"labels: {len(unknown)} of them are unknown to the run. They do not look like names and are not shown."
        )
    if unknown:
        raise_faults(
            DataError,
            "labels",
            [f"the run knows no label {label!r}.{nearest(label, known)}" for label in unknown],
        )
    return np.array([places[label] for label in labels], dtype=np.int64)


def user_vectors(run: Run, positions: Sequence[int], only: Sequence[str] | None = None) -> np.ndarray | None:
    """Each user's own parameters as one row, all of them or some: from the vault, or from the server's table.

    None where there are none, or where they are made anew from a text every time and never kept.
    """
    if run.method.personalize.generates or run.method.model.private_varies:
        return None
    if run.built.partition.names(Role.PRIVATE):
        names = [run.federation.users[position] for position in positions]
        private = run.clients.private(names, run.state.broadcast())
        return np.stack(
            [
                np.concatenate([own[key].numpy().ravel() for key in sorted(own) if only is None or key in only])
                for own in (private[name] for name in names)
            ]
        )
    tables = [name for name, column in run.method.model.keys.items() if column == "author"]
    return run.state.keyed[tables[0]][list(positions)].numpy() if tables else None


def embeddings_of(run: Run) -> list[str]:
    """The names of users' embeddings among what is private."""
    return [name for name in run.built.partition.names(Role.PRIVATE) if name.endswith("user.embedding")]


def privacy_of(run: Run) -> dict[str, Any] | None:
    """What differential privacy the run had, and what its rounds cost; None: it had none."""
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
        "counted_noise": release.noise_multiplier,  # in units of what one user moves
        "releases": rounds,
        "delta": delta,
        "epsilon": cost.epsilon,
        "epsilon_pld": cost.pld,
        "epsilon_rdp": cost.rdp,
        "insecure": settings.insecure,
    }
    done(1)
    return found


def results(run: Run) -> dict[str, Any]:
    """All that `results.json` says of a finished run."""
    history = run.history()
    test = evaluate(run, run.scoring.scored_part)
    adapted = adapted_from(run, test) if run.scoring.by_user else {}
    controls = {name: one.to_dict() for name, one in newcomer_controls(run).items()}
    personal = personal_share(run)
    return {
        "method": run.method.name,
        "identity": run.vault.identity,
        "pooled": run.method.local.pooled,
        "parameters": {role.value: run.built.count(role) for role in Role},
        "settings": run.method.settings.model_dump(mode="json"),
        "run": run.settings.model_dump(mode="json"),
        "task": asdict(run.method.task),
        "scoring": {name: getattr(run.scoring, name) for name in ("by_user", "percent", "lower_is_better")},
        "rounds": [entry for entry in history if entry["kind"] == "round"],
        "curve": [entry for entry in history if entry["kind"] == "evaluation"],
        "eval": evaluate(run, "eval").to_dict(),
        "test": test.to_dict(),
        "adapted": {count: found.to_dict() for count, found in adapted.items()},
        "newcomers": {count: found.to_dict() for count, found in evaluate_newcomers(run).items()},
        "newcomers_untouched": controls.get("untouched"),
        "newcomers_in_context": {
            name.removeprefix(IN_CONTEXT): one for name, one in controls.items() if name.startswith(IN_CONTEXT)
        },
        "personal": personal and {state: one.to_dict() for state, one in personal.items()},
        "privacy": privacy_of(run),
        "released": ["parameter updates", *_metrics_sent(run), *statistic_labels(run.method)],
    }


def _metrics_sent(run: Run) -> list[str]:
    """What clients tell beside parameters. Under privacy everybody's weight is 1, and statistics are told only if they
    have a clip norm."""
    privacy = run.settings.privacy
    if privacy is None:
        return ["weight", *METRICS]
    return [] if privacy.metrics_clip is None else list(METRICS)


def statistic_labels(method: Method) -> list[str]:
    """What clients disclose beside their updates, in words."""
    return [one.label for one in method.local.statistics.values() if one.label]
