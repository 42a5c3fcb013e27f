"""Several configurations on one corpus, over several seeds, side by side.

An experiment is a small TOML file; the folder it runs into holds one run folder per configuration and
seed, so a kill costs at most one round, and the same command goes on.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import Field, StringConstraints

from homespun.core.errors import SettingsError
from homespun.core.method import method_module
from homespun.core.settings import Settings, parse
from homespun.data.check import check
from homespun.data.federation import Federation
from homespun.data.splits import sample_users
from homespun.evaluation.metrics import majority, mean_and_deviation
from homespun.files import SCHEMA, DataSettings, read_json, versions, write_json
from homespun.run import RoundRecord, Run, RunSettings
from homespun.training import (
    Evaluated,
    evaluate_controls,
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
MAPPED_USERS = 500  # at most so many points on a map


# It becomes the name of a folder.
ConfigurationName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]


class Configuration(Settings):
    method: str
    title: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)  # of the method and of the run


class Experiment(Settings):
    name: str
    data: DataSettings
    seeds: tuple[int, ...] = (0,)
    settings: dict[str, Any] = Field(default_factory=dict)  # of every run
    configurations: dict[ConfigurationName, Configuration]


def read_experiment(path: Path) -> Experiment:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"no experiment file {str(path)!r}") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read as TOML: {error}") from None
    made = parse(Experiment, {"name": path.stem, **values}, where=str(path))
    return made.model_copy(update={"data": made.data.resolved()})


def run_folder(folder: Path, configuration: str, seed: int) -> Path:
    return folder / "runs" / configuration / f"seed-{seed}"


def train_all(experiment: Experiment, folder: Path, following: Following) -> None:
    """Train whatever is not trained yet; afterwards `collect` has the numbers.

    `following(run, title)` is entered around each run and gives a function that is shown its events.
    """
    check_settings(experiment)
    federation = experiment.data.load()
    for seed in experiment.seeds:
        for name, configuration in experiment.configurations.items():
            place, title = run_folder(folder, name, seed), configuration.title or name
            with open_configuration(experiment, configuration, federation, place, seed) as run:
                if run.state.round >= run.total_rounds and (place / RESULTS_FILE).exists():
                    continue
                with following(run, f"{title}, seed {seed}") as show:
                    for event in training(run):
                        show(event)
                write_results(place, single_results(run, experiment.data, title=title))


def check_settings(experiment: Experiment) -> None:
    """Find every wrong setting before the first configuration trains."""
    for name, configuration in experiment.configurations.items():
        values = {**experiment.settings, **configuration.settings}
        run, method = separate_settings(configuration.method, values)
        parse(RunSettings, run, where=f"configuration {name}")
        parse(method_module(configuration.method).Settings, method, where=f"configuration {name}")


def open_configuration(
    experiment: Experiment, configuration: Configuration, federation: Federation, place: Path, seed: int
) -> Run:
    settings = {**experiment.settings, **configuration.settings, "seed": seed}
    return prepare(configuration.method, federation, folder=place, settings=settings, data=experiment.data)


def single_results(run: Run, data: DataSettings, *, title: str) -> dict[str, Any]:
    """`results.json` of one run: a comparison with one configuration and one seed."""
    found = controls_of(run)
    one = {**results(run), "seed": run.settings.seed, "maps": maps(run)}
    described = {**describe(run.federation, data), "newcomers": len(run.newcomers.users)}
    return assemble(title, described, configurations={run.method.name: (title, [one])}, controls=[found])


def collect(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """All runs of a finished experiment in one results object."""
    configurations: dict[str, tuple[str, list[dict[str, Any]]]] = {}
    controls: list[dict[str, Any]] = []
    first: dict[str, Any] = {}
    for name, configuration in experiment.configurations.items():
        runs = []
        for seed in experiment.seeds:
            single = read_results(run_folder(folder, name, seed))
            (only,) = single["configurations"].values()
            runs += only["runs"]
            first = first or single
            if name == next(iter(experiment.configurations)):
                controls.append(single["controls"]["runs"][0])
        configurations[name] = (configuration.title or name, runs)
    found = assemble(experiment.name, first["data"], configurations=configurations, controls=controls)
    return {**found, "similarity": similarities(experiment, folder)}


def assemble(
    name: str,
    data: Mapping[str, Any],
    *,
    configurations: Mapping[str, tuple[str, list[dict[str, Any]]]],
    controls: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "name": name,
        "versions": versions(),
        "data": data,
        "configurations": {
            key: {"title": title, "method": runs[0]["method"], "summary": summary(runs), "runs": runs}
            for key, (title, runs) in configurations.items()
        },
        "controls": {"runs": list(controls), "summary": control_summary(controls)},
        "similarity": [],
    }


def describe(federation: Federation, data: DataSettings) -> dict[str, Any]:
    return {
        **data.model_dump(mode="json"),
        "name": federation.name.partition("/")[0],  # without "/participants"
        "fingerprint": federation.fingerprint,
        "labels": list(federation.labels),
        "contexts": len(federation.contexts),
        "users": len(federation.users),
        "check": check(federation).to_dict(),
    }


_COLUMNS = ("value", "user_mean", "user_worst_tenth", "loss")


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    mean, deviation = mean_and_deviation(values)
    return {"mean": mean, "std": None if np.isnan(deviation) else deviation}


def _summarized(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "metric": entries[0]["metric"],
        **{column: _spread([entry[column] for entry in entries]) for column in _COLUMNS},
    }


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over seeds of what a table shows."""
    return {
        "eval": _summarized([run["eval"] for run in runs]),
        "test": _summarized([run["test"] for run in runs]),
        **{
            who: {count: _summarized([run[who][count] for run in runs]) for count in runs[0][who]}
            for who in ("adapted", "newcomers")
        },
        "rounds": len(runs[0]["rounds"]),
        "seconds_per_round": _spread([float(np.mean([r["seconds"] for r in run["rounds"]])) for run in runs]),
    }


def controls_of(run: Run) -> dict[str, Any]:
    return {name: found.to_dict() for name, found in evaluate_controls(run).items()}


def control_summary(controls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: _summarized([one[name] for one in controls]) for name in controls[0]}


def maps(run: Run) -> dict[str, Any] | None:
    """Users' own vectors in the plane, by PCA and t-SNE, with what is known to color them by."""
    from sklearn.decomposition import PCA  # takes a second, and only finished runs need it
    from sklearn.manifold import TSNE

    positions = sample_users(run.federation, at_most=MAPPED_USERS, seed=run.settings.seed)
    vectors = user_vectors(run, positions)
    if vectors is None or len(vectors) < 5:
        return None
    perplexity = min(30.0, (len(vectors) - 1) / 3)
    flat = TSNE(perplexity=perplexity, random_state=run.settings.seed, init="pca").fit_transform(vectors)
    spread = PCA(n_components=min(2, vectors.shape[1]), random_state=0).fit_transform(vectors)
    if spread.shape[1] == 1:
        spread = np.column_stack([spread, np.zeros(len(spread))])
    labels = [np.asarray(run.federation.examples(position).labels) for position in positions]
    classes = run.method.task.classes
    return {
        "users": len(positions),
        "of": len(run.federation.users),
        "pca": np.round(spread, 4).tolist(),
        "tsne": np.round(flat, 4).tolist(),
        "group": [run.federation.group(position) for position in positions],
        "label": [run.federation.labels[majority(one, classes=classes)] for one in labels],
        "positive_rate": [float(np.mean(one == 1)) for one in labels] if classes == 2 else None,
    }


def similarities(experiment: Experiment, folder: Path) -> list[dict[str, Any]]:
    """How alike the users' vectors of two configurations are: the rank correlation of pairwise distances."""
    from scipy.spatial.distance import pdist
    from scipy.stats import spearmanr

    found = []
    for seed in experiment.seeds:
        vectors: dict[str, np.ndarray] = {}
        for name in experiment.configurations:
            with reopen(run_folder(folder, name, seed)) as run:
                positions = sample_users(run.federation, at_most=MAPPED_USERS, seed=seed)
                rows = user_vectors(run, positions)
            if rows is not None and len(rows) > 2:
                vectors[name] = rows
        names = list(vectors)
        for place, left in enumerate(names):
            for right in names[place + 1 :]:
                correlation = spearmanr(pdist(vectors[left]), pdist(vectors[right])).statistic
                found.append({"left": left, "right": right, "seed": seed, "correlation": float(correlation)})
    return found


def write_results(folder: Path, found: Mapping[str, Any]) -> Path:
    return write_json(folder / RESULTS_FILE, found)


def read_results(folder: Path) -> dict[str, Any]:
    return read_json(
        folder / RESULTS_FILE, missing=f"{folder}: no {RESULTS_FILE} here. Train the run to its end first."
    )
