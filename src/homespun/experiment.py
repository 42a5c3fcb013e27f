"""Several configurations on one corpus, over several seeds, side by side.

An experiment is a small TOML file; the folder it runs into holds one run folder per configuration and
seed, so a kill costs at most one round, and the same command goes on. With folds there is one per fold of
a seed: fold after fold, everybody is withheld once.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from pydantic import Field, PositiveInt, StringConstraints, model_validator

from homespun.assignments import assignments
from homespun.core.errors import RunError, SettingsError, nearest
from homespun.core.method import method_module
from homespun.core.settings import Settings, parse
from homespun.data.check import check
from homespun.data.federation import Federation
from homespun.data.splits import Fractions, Subset, sample_users, withhold
from homespun.evaluation.differences import differences, from_samples
from homespun.evaluation.metrics import mean_and_deviation
from homespun.evaluation.pooling import COLUMNS, averaged, joined
from homespun.files import SCHEMA, DataSettings, read_json, versions, write_json
from homespun.judging import evaluate_controls, tested_part
from homespun.maps import MAPPED_USERS, map_users
from homespun.run import RoundRecord, Run, RunSettings
from homespun.training import (
    Evaluated,
    prepare,
    reopen,
    results,
    separate_settings,
    training,
    user_vectors,
)

RESULTS_FILE = "results.json"
Event: TypeAlias = RoundRecord | Evaluated
Following: TypeAlias = Callable[[Run, str], AbstractContextManager[Callable[[Event], None]]]
T = TypeVar("T")
COUNTED_USERS = 100_000  # sub-populations of larger corpora are not counted


# It becomes the name of a folder.
ConfigurationName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]


class Configuration(Settings):
    method: str
    title: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)  # of the method and of the run


class Draw(NamedTuple):
    """What is random about a run: its seed and, with folds, who is withheld."""

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
    """Openings that people of one configuration continue; whoever is left out is chosen as `samples.showcase` says."""

    configuration: str
    openings: tuple[str, ...] = Field(min_length=1)
    person: str | None = None  # continues in every context
    people: tuple[str, ...] | None = None  # continue in one
    context: str | None = None  # that one
    sampling: dict[str, Any] = Field(default_factory=dict)


class Experiment(Settings):
    name: str
    data: DataSettings
    seeds: tuple[int, ...] = (0,)
    folds: PositiveInt | None = None  # of every seed; None: its newcomers are one random draw
    settings: dict[str, Any] = Field(default_factory=dict)  # of every run
    configurations: dict[ConfigurationName, Configuration]
    showcase: Showcase | None = None

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
    """The experiment with these settings in every run, whatever its configurations say."""
    configurations = {
        name: one.model_copy(update={"settings": {**one.settings, **values}})
        for name, one in experiment.configurations.items()
    }
    return experiment.model_copy(update={"configurations": configurations})


def run_folder(folder: Path, configuration: str, draw: Draw) -> Path:
    return folder / "runs" / configuration / draw.folder


def train_all(experiment: Experiment, folder: Path, following: Following) -> None:
    """Train whatever is not trained yet; afterwards `collect` has the numbers.

    `following(run, title)` is entered around each run and gives a function that is shown its events.
    """
    check_settings(experiment)
    federation = experiment.data.load()
    check_folds(experiment, federation)
    for draw in experiment.draws:
        for name, configuration in experiment.configurations.items():
            place, title = run_folder(folder, name, draw), configuration.title or name
            with open_configuration(experiment, configuration, federation, place=place, draw=draw) as run:
                if _finished(run, place):
                    continue
                with following(run, f"{title}, {draw}") as show:
                    for event in training(run):
                        show(event)
                write_results(place, single_results(run, experiment.data, title=title))


def _finished(run: Run, place: Path) -> bool:
    """Whether the run here is all that is asked for. One that went on for longer is no part of this comparison."""
    if run.state.round > run.total_rounds:
        raise RunError(
            f"{place}: this run has {run.state.round} rounds, and {run.total_rounds} are asked for. Ask for as many, "
            "or name another --folder."
        )
    if run.state.round < run.total_rounds or not (place / RESULTS_FILE).exists():
        return False
    (only,) = read_results(place)["configurations"].values()
    evaluated = only["runs"][0]["run"]
    how = ("evaluate_users", "evaluate_examples")  # in another way: it is evaluated again, not trained
    return all(evaluated[name] == getattr(run.settings, name) for name in how)


def check_settings(experiment: Experiment) -> None:
    """Find every wrong setting before the first configuration trains."""
    for name, configuration in experiment.configurations.items():
        values = {**experiment.settings, **configuration.settings}
        run, method = separate_settings(configuration.method, values)
        parse(RunSettings, run, where=f"configuration {name}")
        parse(method_module(configuration.method).Settings, method, where=f"configuration {name}")


def check_folds(experiment: Experiment, federation: Federation) -> None:
    """The last fold is drawn before the first trains: one too many would be found hours later."""
    if experiment.folds is None:
        return
    for configuration in experiment.configurations.values():
        values = {**experiment.settings, **configuration.settings}
        run = RunSettings(**separate_settings(configuration.method, values)[0])
        withhold(federation, share=run.withheld, seed=experiment.seeds[0], fold=experiment.folds - 1)


def open_configuration(
    experiment: Experiment, configuration: Configuration, federation: Federation, *, place: Path, draw: Draw
) -> Run:
    settings = {**experiment.settings, **configuration.settings, **draw.settings}
    return prepare(configuration.method, federation, folder=place, settings=settings, data=experiment.data)


def single_results(run: Run, data: DataSettings, *, title: str) -> dict[str, Any]:
    """`results.json` of one run: a comparison with one configuration and one seed."""
    found = controls_of(run)
    drawn = {"seed": run.settings.seed, "fold": run.settings.fold}
    one = {**results(run), **drawn, "positions": positions(run), "maps": map_users(run), "assigned": assignments(run)}
    described = {
        **describe(run.federation, data, fractions=run.settings.fractions),
        "newcomers": len(run.newcomers.users),
    }
    return assemble(title, described, configurations={run.method.name: (title, [one])}, controls=[found])


def collect(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """All runs of a finished experiment in one results object."""
    configurations: dict[str, tuple[str, list[dict[str, Any]]]] = {}
    controls: list[dict[str, Any]] = []
    first: dict[str, Any] = {}
    for name, configuration in experiment.configurations.items():
        runs = []
        for draw in experiment.draws:
            single = read_results(run_folder(folder, name, draw))
            (only,) = single["configurations"].values()
            runs += only["runs"]
            first = first or single
            if name == next(iter(experiment.configurations)):
                controls.append(single["controls"]["runs"][0])
        configurations[name] = (configuration.title or name, runs)
    data = first["data"] if experiment.folds is None else folded(experiment, folder)
    found = assemble(experiment.name, data, configurations=configurations, controls=controls)
    return {**found, "similarity": similarities(experiment, folder)}


def folded(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """The data of a seed's folds together: the newcomers are those of all folds."""
    name, seed = next(iter(experiment.configurations)), experiment.seeds[0]
    of_each = [read_results(run_folder(folder, name, draw))["data"] for draw in experiment.draws if draw.seed == seed]
    return {**of_each[0], "newcomers": sum(data["newcomers"] for data in of_each), "folds": experiment.folds}


def assemble(
    name: str,
    data: Mapping[str, Any],
    *,
    configurations: Mapping[str, tuple[str, list[dict[str, Any]]]],
    controls: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    runs_of = {key: runs for key, (_, runs) in configurations.items()}
    seeds = [run["seed"] for run in next(iter(runs_of.values()))]
    return {
        "schema": SCHEMA,
        "name": name,
        "versions": versions(),
        "data": data,
        "configurations": {
            key: {"title": title, "method": runs[0]["method"], "summary": summary(runs), "runs": runs}
            for key, (title, runs) in configurations.items()
        },
        "controls": {"runs": list(controls), "summary": control_summary(controls, seeds)},
        "differences": differences(runs_of, controls),
        "from_samples": from_samples(runs_of),
        "similarity": [],
    }


def describe(federation: Federation, data: DataSettings, *, fractions: Fractions) -> dict[str, Any]:
    return {
        **data.model_dump(mode="json"),
        "name": federation.name.partition("/")[0],  # without "/participants"
        "fingerprint": federation.fingerprint,
        "labels": list(federation.labels),
        "contexts": len(federation.contexts),
        "users": len(federation.users),
        "check": check(federation, fractions=fractions).to_dict(),
        "groups": groups_of(federation),
    }


def groups_of(federation: Federation) -> dict[str, int] | None:
    """How many users every known sub-population has; None where nobody's is known."""
    users = len(federation.users)
    if not users or users > COUNTED_USERS or federation.group(0) is None:
        return None
    counts = Counter(str(federation.group(user)) for user in range(users))
    # in the order of their numbers, where they have some
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
    """One entry per run; the folds of a seed together."""
    together: dict[int, list[T]] = {}
    for seed, entry in zip(seeds, entries, strict=True):
        together.setdefault(seed, []).append(entry)
    return list(together.values())


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over seeds of what a table shows.

    The folds of a seed share most participants, whose evaluations are averaged; their newcomers are different
    people and count as one evaluation.
    """
    seeds = by_seed([run["seed"] for run in runs], runs)

    def known(*path: str) -> dict[str, Any]:
        return _summarized([averaged([reduce(getitem, path, run) for run in folds]) for folds in seeds])

    def new(*path: str) -> dict[str, Any]:
        return _summarized([joined([reduce(getitem, path, run) for run in folds]) for folds in seeds])

    return {
        "eval": known("eval"),
        "test": known("test"),
        "adapted": {count: known("adapted", count) for count in runs[0]["adapted"]},
        "newcomers": {count: new("newcomers", count) for count in runs[0]["newcomers"]},
        "newcomers_untouched": new("newcomers_untouched") if runs[0].get("newcomers_untouched") else None,
        "rounds": len(runs[0]["rounds"]),
        "seconds_per_round": _spread([float(np.mean([r["seconds"] for r in run["rounds"]])) for run in runs]),
    }


def positions(run: Run) -> dict[str, list[int]] | None:
    """Whom a text's evaluation is about, in its order, by position in the corpus; None for labels.

    Seeds and folds withhold different people, so a place in an evaluation does not say who it is.
    """
    if run.method.predicts != "text":
        return None

    def scored(people: Federation) -> list[int]:
        chosen = sample_users(people, at_most=run.settings.evaluate_users, seed=run.settings.seed)
        able = [place for place in chosen if len(run.encode(people, place, tested_part(run))["length"])]
        return [int(people.positions[place]) for place in able] if isinstance(people, Subset) else able

    return {"participants": scored(run.federation), "newcomers": scored(run.newcomers)}


def controls_of(run: Run) -> dict[str, Any]:
    return {name: found.to_dict() for name, found in evaluate_controls(run).items()}


def control_summary(controls: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    return {
        name: _summarized([averaged([one[name] for one in folds]) for folds in by_seed(seeds, controls)])
        for name in controls[0]
    }


def similarities(experiment: Experiment, folder: Path) -> list[dict[str, Any]]:
    """How alike the users' vectors of two configurations are: the rank correlation of pairwise distances."""
    from scipy.spatial.distance import pdist
    from scipy.stats import spearmanr

    found = []
    for draw in [draw for draw in experiment.draws if not draw.fold]:  # one fold says it
        vectors: dict[str, np.ndarray] = {}
        for name in experiment.configurations:
            with reopen(run_folder(folder, name, draw)) as run:
                positions = sample_users(run.federation, at_most=MAPPED_USERS, seed=draw.seed)
                rows = user_vectors(run, positions)
            if rows is not None and len(rows) > 2:
                vectors[name] = rows
        names = list(vectors)
        for place, left in enumerate(names):
            for right in names[place + 1 :]:
                correlation = spearmanr(pdist(vectors[left]), pdist(vectors[right])).statistic
                found.append({"left": left, "right": right, "seed": draw.seed, "correlation": float(correlation)})
    return found


def write_results(folder: Path, found: Mapping[str, Any]) -> Path:
    return write_json(folder / RESULTS_FILE, found)


def read_results(folder: Path) -> dict[str, Any]:
    found = read_json(
        folder / RESULTS_FILE, missing=f"{folder}: no {RESULTS_FILE} here. Train the run to its end first."
    )
    if not {"name", "data", "configurations", "controls"} <= found.keys():
        raise RunError(
            f"{folder / RESULTS_FILE}: not the results of a run, or not all of them. Train it again to its end."
        )
    return found
