"""Several configurations on one corpus, over several seeds, side by side.

An experiment is a small TOML file; its folder holds one run folder per configuration and seed, so a kill costs at most
one round, and the same command resumes. With folds, there is one run folder per fold of a seed; over the folds, each
user is withheld once. Runs may be trained on several machines: a run folder that has only a `results.json` counts as
finished.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
from pydantic import Field, PositiveInt, StringConstraints, model_validator

from homespun.analysis.projections import MAX_PROJECTED_USERS
from homespun.analysis.user_vectors import collect_user_vectors
from homespun.core.errors import RunError, SettingsError, nearest
from homespun.core.method import Method
from homespun.core.progress import Show, each, silent, start_count
from homespun.core.records import RoundRecord
from homespun.core.settings import Settings, current_identity, parse, stored_settings
from homespun.data.federation import Federation
from homespun.data.source import DataSettings
from homespun.data.splits import original, sample_users
from homespun.experiments.reply_quality import require_inverse
from homespun.experiments.results import (
    EVALUATION_SETTINGS,
    RESULTS_FILE,
    assemble,
    only_run,
    read_results,
    single_results,
    write_results,
)
from homespun.experiments.shared_training import adopt_training
from homespun.runs.identity import require_same_run
from homespun.runs.open_run import identity_of, method_for
from homespun.runs.run import Run
from homespun.runs.settings import RunSettings
from homespun.runs.training import CurvePoint, prepare, reopen, separate_settings, train_and_evaluate
from homespun.runs.vault import VAULT_FILE
from homespun.system.method_loading import method_module, settings_command
from homespun.system.trust import named_by_user

Event: TypeAlias = RoundRecord | CurvePoint
Observer: TypeAlias = Callable[[Run, str], AbstractContextManager[Callable[[Event], None]]]


# Also the name of a folder.
ConfigurationName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]


class Configuration(Settings):
    method: str
    """A method, or a .py file with one."""
    title: str = ""
    """Title in tables. Empty: its name."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the method and of the run; `homespun settings METHOD` lists them."""


class Draw(NamedTuple):
    """What is random about a run: its seed and, with folds, which users are withheld."""

    seed: int
    fold: int | None = None

    def __str__(self) -> str:
        return f"seed {self.seed}" + ("" if self.fold is None else f", fold {self.fold}")

    @property
    def folder(self) -> str:
        return f"seed-{self.seed}" + ("" if self.fold is None else f"-fold-{self.fold}")

    @property
    def settings(self) -> dict[str, int]:
        return {"seed": self.seed} if self.fold is None else {"seed": self.seed, "fold": self.fold}


class Showcase(Settings):
    """Prompts that users of one configuration continue; see `prompt_continuations.showcase` for the defaults."""

    configuration: str
    """The configuration whose first run is shown."""
    openings: tuple[str, ...] = Field(min_length=1)
    """Prompts to continue."""
    person: str | None = None
    """User who continues them in every context. Not set: the first participant who never used one of the contexts."""
    people: tuple[str, ...] | None = None
    """Users who continue them in one context. Not set: the first other participants."""
    context: str | None = None
    """That context. Not set: the most frequent one of `person`."""
    sampling: dict[str, Any] = Field(default_factory=dict)
    """Sampling options; see Continuations of a text."""


class Experiment(Settings):
    name: str
    """Name of the experiment, and of its folder in runs/. Not set: the name of the file."""
    data: DataSettings
    """The corpus."""
    seeds: tuple[int, ...] = (0,)
    """Every configuration is trained once for each seed."""
    folds: PositiveInt | None = None
    """Runs of every seed; over them, each user is withheld once. Not set: one run, with a random draw of new users."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of every run."""
    configurations: dict[ConfigurationName, Configuration]
    """The configurations to compare, by name."""
    showcase: Showcase | None = None
    """Texts for the report, continued by users of one configuration."""

    @model_validator(mode="after")
    def _shows_a_configuration(self) -> Experiment:
        if self.showcase and self.showcase.configuration not in self.configurations:
            name, known = self.showcase.configuration, list(self.configurations)
            raise ValueError(f"showcase: no configuration {name!r}.{nearest(name, known)} Known: {', '.join(known)}")
        return self

    @property
    def draws(self) -> list[Draw]:
        """The runs of every configuration."""
        folds = [None] if self.folds is None else range(self.folds)
        return [Draw(seed, fold) for seed in self.seeds for fold in folds]


def read_experiment(path: Path) -> Experiment:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"no experiment file {str(path)!r}") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read as TOML: {error}") from None
    made = parse(Experiment, {"name": path.stem, **values}, where=str(path))
    return made.model_copy(update={"data": made.data.resolved()})


def with_settings(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """The experiment with these settings in every run; they override those of its configurations."""
    configurations = {
        name: one.model_copy(update={"settings": {**one.settings, **values}})
        for name, one in experiment.configurations.items()
    }
    return experiment.model_copy(update={"configurations": configurations})


def run_folder(folder: Path, configuration: str, draw: Draw) -> Path:
    return folder / "runs" / configuration / draw.folder


def train_all(experiment: Experiment, folder: Path, observe: Observer, *, progress: Show = silent) -> None:
    """Train all runs that are not finished; `collect` then returns the results.

    `observe(run, title)` returns a context manager that is entered around each run's training and yields a function
    that receives its events; `progress` receives the progress of long operations.
    """
    check_settings(experiment)
    federation = experiment.data.load()
    check_folds(experiment, federation)
    for draw in experiment.draws:
        for name, configuration in experiment.configurations.items():
            place, title = run_folder(folder, name, draw), configuration.title or name
            shown = experiment.showcase and experiment.showcase.configuration == name and draw == experiment.draws[0]
            # a showcase needs the run's vault, so that run has to be trained here
            if not shown and _finished_elsewhere(experiment, configuration, federation, place=place, draw=draw):
                continue
            with open_configuration(
                experiment, configuration, federation, place=place, draw=draw, progress=progress
            ) as run:
                if _finished(run, place):
                    continue
                require_inverse(run)
                adopt_training(run, [run_folder(folder, other, draw) for other in experiment.configurations])
                with observe(run, f"{title}, {draw}") as show:
                    for event in train_and_evaluate(run):
                        show(event)
                write_results(place, single_results(run, experiment.data, title=title))


@named_by_user()
def _finished_elsewhere(
    experiment: Experiment, configuration: Configuration, federation: Federation, *, place: Path, draw: Draw
) -> bool:
    """Whether another machine trained the run: results without a vault. They must be those of the requested run."""
    if (place / VAULT_FILE).exists() or not (place / RESULTS_FILE).exists():
        return False
    run = only_run(place)
    values, method_values = separate_settings(configuration.method, _settings(experiment, configuration, draw))
    settings = parse(RunSettings, values, where="run")
    method, participants, _ = method_for(federation, settings, method=configuration.method, values=method_values)
    federation = original(participants)  # as the method reads it
    # besides the identity of the run: its length and how it was evaluated
    more = ("rounds", "epochs", "final_personalization", *EVALUATION_SETTINGS)
    asked = {
        **identity_of(method, federation, settings),
        **settings.model_dump(mode="json", include=set(more)),
        **_without_folders(method.settings.evaluation()),
    }
    kept = {
        **current_identity(run["identity"]),
        **{name: run["run"][name] for name in more},
        **_without_folders(_evaluated_with(run, method)),
    }
    require_same_run(place, stored=_without_artefact_paths(kept, method), asked=_without_artefact_paths(asked, method))
    return True


def _evaluated_with(run: Mapping[str, Any], method: Method) -> dict[str, Any]:
    """The values that changed the evaluation of a finished run."""
    return parse(type(method.settings), stored_settings(run["settings"]), where="settings in results").evaluation()


def _without_folders(values: Mapping[str, Any]) -> dict[str, Any]:
    """The last part of each path: the folders before it differ between machines."""
    return {
        name: Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
        for name, value in values.items()
    }


def _without_artefact_paths(identity: Mapping[str, Any], method: Method) -> dict[str, Any]:
    """The path of an artefact differs between machines; its fingerprint identifies it."""
    settings, places = identity.get("method_settings"), {one.setting for one in method.artefacts}
    if not isinstance(settings, Mapping):
        return dict(identity)
    return {**identity, "method_settings": {name: value for name, value in settings.items() if name not in places}}


def _finished(run: Run, place: Path) -> bool:
    """Whether the run is finished as requested. A run with more rounds is rejected."""
    if run.state.round > run.total_rounds:
        raise RunError(
            f"{place}: this run has {run.state.round} rounds, but {run.total_rounds} are requested. Request as many, "
            "or choose another --folder."
        )
    if not run.finished or not (place / RESULTS_FILE).exists():
        return False
    kept = only_run(place)
    asked = run.settings.model_dump(mode="json")
    if len(kept["rounds"]) != run.state.round or kept["run"]["final_personalization"] != asked["final_personalization"]:
        return False  # outdated results: the run was extended and then stopped
    # if evaluated differently: evaluate again, without training
    return run.method.settings.evaluation() == _evaluated_with(kept, run.method) and all(
        kept["run"][name] == asked[name] for name in EVALUATION_SETTINGS
    )


@named_by_user()
def check_settings(experiment: Experiment) -> None:
    """Find every wrong setting before the first configuration trains."""
    for name, configuration in experiment.configurations.items():
        values = {**experiment.settings, **configuration.settings}
        run, method = separate_settings(configuration.method, values)
        where, listed_by = f"configuration {name}", settings_command(configuration.method)
        parse(RunSettings, run, where=where, listed_by=listed_by)
        parse(method_module(configuration.method).Settings, method, where=where, listed_by=listed_by)


@named_by_user()
def check_folds(experiment: Experiment, federation: Federation) -> None:
    """Draw the last fold before the first one trains: otherwise, too many folds would be noticed hours later."""
    if experiment.folds is None:
        return
    for configuration in experiment.configurations.values():
        values = {**experiment.settings, **configuration.settings}
        run, own = separate_settings(configuration.method, {**values, "seed": experiment.seeds[0]})
        last = RunSettings(**{**run, "fold": experiment.folds - 1})
        method_for(federation, last, method=configuration.method, values=own)


def open_configuration(
    experiment: Experiment,
    configuration: Configuration,
    federation: Federation,
    *,
    place: Path,
    draw: Draw,
    progress: Show = silent,
) -> Run:
    settings = _settings(experiment, configuration, draw)
    method, data = configuration.method, experiment.data
    return prepare(method, federation, folder=place, settings=settings, data=data, progress=progress)


def _settings(experiment: Experiment, configuration: Configuration, draw: Draw) -> dict[str, Any]:
    return {**experiment.settings, **configuration.settings, **draw.settings}


def collect(experiment: Experiment, folder: Path, *, progress: Show = silent) -> dict[str, Any]:
    """The results of all runs of a finished experiment in one object."""
    done = start_count(progress, "reading results", total=len(experiment.configurations) * len(experiment.draws))
    configurations: dict[str, tuple[str, list[dict[str, Any]]]] = {}
    controls: list[dict[str, Any]] = []
    first: dict[str, Any] = {}
    for name, configuration in experiment.configurations.items():
        runs = []
        for draw in each(experiment.draws, done):
            single = read_results(run_folder(folder, name, draw))
            (only,) = single["configurations"].values()
            runs += only["runs"]
            first = first or single
            if name == next(iter(experiment.configurations)):
                controls.append(single["controls"]["runs"][0])
        configurations[name] = (configuration.title or name, runs)
    data = first["data"] if experiment.folds is None else data_over_folds(experiment, folder)
    alike = similarities(experiment, folder, progress=progress)
    done = start_count(progress, "differences", total=1)
    found = assemble(experiment.name, data, configurations=configurations, controls=controls)
    done(1)
    return {**found, "similarity": alike}


def data_over_folds(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """The data of all folds of a seed: the newcomers are those of all folds."""
    name, seed = next(iter(experiment.configurations)), experiment.seeds[0]
    of_each = [read_results(run_folder(folder, name, draw))["data"] for draw in experiment.draws if draw.seed == seed]
    return {**of_each[0], "newcomers": sum(data["newcomers"] for data in of_each), "folds": experiment.folds}


def similarities(experiment: Experiment, folder: Path, *, progress: Show = silent) -> list[dict[str, Any]]:
    """Similarity of the users' vectors of each two configurations: the rank correlation of pairwise distances."""
    from scipy.spatial.distance import pdist
    from scipy.stats import rankdata

    found = []
    federation: Federation | None = None  # loaded once: loading takes longer than reading a run
    draws = [draw for draw in experiment.draws if not draw.fold]  # one fold is enough
    done = start_count(progress, "comparing users' vectors", total=len(draws) * len(experiment.configurations))
    for draw in draws:
        ranks: dict[str, np.ndarray] = {}
        for name in each(experiment.configurations, done):
            kept = run_folder(folder, name, draw)
            if not (kept / VAULT_FILE).exists():  # trained on another machine
                continue
            federation = experiment.data.load() if federation is None else federation
            with reopen(kept, federation=federation) as run:
                positions = sample_users(run.federation, at_most=MAX_PROJECTED_USERS, seed=draw.seed)
                vectors = collect_user_vectors(run, positions)
            if vectors is not None and len(vectors) > 2:
                ranks[name] = rankdata(pdist(vectors))
        for left, right in combinations(ranks, 2):
            correlation = np.corrcoef(ranks[left], ranks[right])[0, 1]
            found.append({"left": left, "right": right, "seed": draw.seed, "correlation": float(correlation)})
    return found
