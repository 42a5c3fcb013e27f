"""Records of the results behind the pages, one file for each comparison.

    python docs/records.py keep fedembed-mnist    runs/fedembed-mnist -> docs/results/fedembed-mnist.json
    python docs/records.py lay fedembed-mnist     the reverse: `homespun compare` then trains only the missing runs
    python docs/records.py controls fedperc-sotu  recompute the controls of language runs, without a trained model

`keep` records the finished runs, and `docs/generate.py` writes pages from the records. A record has the part of each
run's `results.json` that pages and `homespun compare` need. It omits summaries, which are recomputed; values of single
users that no table needs; digits after the seventh; and the path of the corpus. Each run has its identity:
`homespun compare` rejects a run that is not the requested one. `docs/record_file.py` describes the format.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from homespun.core.errors import HomespunError, RunError
from homespun.experiments.experiment import Draw, Experiment, open_configuration, read_experiment, run_folder
from homespun.experiments.results import RESULTS_FILE, assemble, read_results, write_results
from homespun.runs.controls import IN_CONTEXT, evaluate_controls, newcomer_controls

sys.path.insert(0, str(Path(__file__).parent))  # import neighbouring scripts from any working directory
from record_file import Record, Run, read_record, write_record

RUNS, RECORDS, EXPERIMENTS, PAGES = Path("runs"), Path("docs/results"), Path("experiments"), Path("docs/methods")
ROUND = ("clients", "seconds", "down_bytes", "up_bytes")
POINT = ("round", "epoch", "value")
EVALUATION = ("metric", "value", "loss", "users", "examples", "user_mean", "user_worst_tenth")
OF_TEXTS = ("user_values", "user_loss", "user_tokens")  # differences and their intervals are computed from these
OF_NEXT_WORDS = ("user_counts",)  # likewise, of the users that tables show
MAP = ("tsne", "group", "label", "positive_rate")


def record_file(name: str) -> Path:
    return RECORDS / f"{name}.json"


def keep(name: str) -> int:
    """Add the finished runs of a comparison to its record; returns their number.

    Runs that the experiment file no longer contains are removed.
    """
    experiment = read_experiment(EXPERIMENTS / f"{name}.toml")
    titles = {key: one.title or key for key, one in experiment.configurations.items()}
    found = _finished(experiment)
    before = read_record(record_file(name)) if record_file(name).exists() else None
    of_run = {run: single["configurations"] for run, single in found.items()}
    new = Record(
        name=name,
        titles=titles,
        draws=[draw.folder for draw in experiment.draws],
        runs={run: shortened(_only(configurations)) for run, configurations in of_run.items()},
        versions={run: single["versions"] for run, single in found.items()},
        data=_by_draw((run, rounded(single["data"])) for run, single in found.items()),
        controls=_by_draw((run, _short_controls(single["controls"]["runs"][0])) for run, single in found.items()),
        maps=_maps(name, of_run, first=experiment.draws[0].folder),
        similarity=_similarity(name),
    )
    if found:
        write_record(record_file(name), new if before is None else _joined(before, new))
    return len(found)


def lay(name: str) -> int:
    """Write every run to the folder where `homespun compare` looks for it, unless it exists; returns their number."""
    record, laid = read_record(record_file(name)), 0
    for (key, draw), run in record.runs.items():
        place = RUNS / name / "runs" / key / draw
        if place.exists():
            continue
        place.mkdir(parents=True)
        title = record.titles[key]
        single = assemble(
            title,
            record.data[draw],
            configurations={run["method"]: (title, [run])},
            controls=[record.controls[draw]],
        )
        write_results(place, {**single, "versions": record.versions[key, draw]})
        laid += 1
    return laid


def comparison(name: str) -> dict[str, Any]:
    """The results of `homespun compare`, computed from the record."""
    record = read_record(record_file(name))
    _require_all_runs(record)
    configurations = {}
    for key, title in record.titles.items():
        first, *others = (record.runs[key, draw] for draw in record.draws)
        drawn = {"maps": record.maps[key]} if key in record.maps else {}
        configurations[key] = (title, [{**first, **drawn}, *others])
    controls_by_draw = [record.controls[draw] for draw in record.draws]
    found = assemble(name, _data(record), configurations=configurations, controls=controls_by_draw)
    return {**found, "versions": _all_versions(record), "similarity": list(record.similarity)}


def controls(name: str) -> int:
    """Recompute the controls of every run, which depend only on the base model and the corpus; returns the number of
    runs."""
    experiment, record = read_experiment(EXPERIMENTS / f"{name}.toml"), read_record(record_file(name))
    known_draws = {draw for _, draw in record.runs}
    found = {draw.folder: _controls(experiment, draw) for draw in experiment.draws if draw.folder in known_draws}
    for draw, (known, _) in found.items():
        if record.controls[draw]["untouched"]["user_tokens"] != known["untouched"]["user_tokens"]:
            sys.exit(f"{name}, {draw}: the record was scored on other tokens. Has the corpus changed?")
    runs = {(key, draw): {**run, **_of_newcomers(found[draw][1])} for (key, draw), run in record.runs.items()}
    known_of = {draw: _short_controls(known) for draw, (known, _) in found.items()}
    write_record(record_file(name), replace(record, runs=runs, controls=known_of))
    return len(runs)


def _finished(experiment: Experiment) -> dict[Run, dict[str, Any]]:
    """The results of every finished run of the experiment."""
    places = {
        (key, draw.folder): run_folder(RUNS / experiment.name, key, draw)
        for key in experiment.configurations
        for draw in experiment.draws
    }
    return {run: read_results(place) for run, place in places.items() if (place / RESULTS_FILE).exists()}


def _joined(before: Record, new: Record) -> Record:
    """The new record, with the runs that only the earlier one has."""

    def wanted(found: Mapping[Run, Any]) -> dict[Run, Any]:
        return {run: one for run, one in found.items() if run[0] in new.titles and run[1] in new.draws}

    pairs = {(one["left"], one["right"], one["seed"]): one for one in (*before.similarity, *new.similarity)}
    return replace(
        new,
        runs=wanted({**before.runs, **new.runs}),
        versions=wanted({**before.versions, **new.versions}),
        data={**before.data, **new.data},
        controls={**before.controls, **new.controls},
        maps={**before.maps, **new.maps},
        similarity=list(pairs.values()),
    )


def _only(configurations: Mapping[str, Any]) -> dict[str, Any]:
    (only,) = configurations.values()
    (run,) = only["runs"]
    return run


def _by_draw(found: Iterable[tuple[Run, Any]]) -> dict[str, Any]:
    """The entry of each draw, from the first configuration that has it, as in `homespun compare`."""
    made: dict[str, Any] = {}
    for (_, draw), one in found:
        made.setdefault(draw, one)
    return made


def _maps(name: str, found: Mapping[Run, Mapping[str, Any]], *, first: str) -> dict[str, Any]:
    """Projections of the first draw, if a page shows them."""
    if not any(f"<!-- maps: {name} -->" in page.read_text(encoding="utf-8") for page in PAGES.glob("*.md")):
        return {}
    drawn = {key: _only(configurations).get("maps") for (key, draw), configurations in found.items() if draw == first}
    return {key: rounded({part: one.get(part) for part in MAP}) for key, one in drawn.items() if one}


def _similarity(name: str) -> list[Any]:
    """Similarity of users' vectors, which only the machine that trained the runs can compute."""
    found = read_results(RUNS / name) if (RUNS / name / RESULTS_FILE).exists() else {}
    return rounded(found.get("similarity") or [])


def _require_all_runs(record: Record) -> None:
    missing = [f"{key}, {draw}" for key in record.titles for draw in record.draws if (key, draw) not in record.runs]
    if missing:
        raise RunError(
            f"{record_file(record.name)}: no runs of {'; '.join(missing)}. Finish `homespun compare "
            f"experiments/{record.name}.toml`, then `python docs/records.py keep {record.name}`."
        )


def _data(record: Record) -> dict[str, Any]:
    """The data as in `experiment.collect`: the newcomers of a seed's folds are different users."""
    runs = [record.runs[next(iter(record.titles)), draw] for draw in record.draws]
    one, folds = record.data[record.draws[0]], [run["fold"] for run in runs if run["seed"] == runs[0]["seed"]]
    if folds == [None]:
        return dict(one)
    newcomers = sum(record.data[draw]["newcomers"] for draw in record.draws[: len(folds)])
    return {**one, "newcomers": newcomers, "folds": len(folds)}


def _all_versions(record: Record) -> dict[str, str]:
    """The versions that the runs were trained with, not those of this machine."""
    found: dict[str, dict[str, None]] = {}
    for versions in record.versions.values():
        for key, value in versions.items():
            found.setdefault(key, {})[value] = None
    return {key: " and ".join(values) for key, values in found.items()}


def _controls(experiment: Experiment, draw: Draw) -> tuple[dict[str, Any], dict[str, Any]]:
    """Controls of participants and of newcomers."""
    first, federation = next(iter(experiment.configurations.values())), experiment.data.load()
    with tempfile.TemporaryDirectory() as folder:
        run = open_configuration(experiment, first, federation, place=Path(folder), draw=draw)
        with run:
            found = evaluate_controls(run), newcomer_controls(run)
    known, new = ({name: one.to_dict() for name, one in some.items()} for some in found)
    return known, new


def _of_newcomers(new: Mapping[str, Any]) -> dict[str, Any]:
    in_context = {
        count.removeprefix(IN_CONTEXT): _evaluation(one) for count, one in new.items() if count.startswith(IN_CONTEXT)
    }
    base_model = new.get("untouched")
    found = {"newcomers_untouched": base_model and _evaluation(base_model), "newcomers_in_context": in_context}
    return rounded(found)


def shortened(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run without the parts that no page needs."""

    def each(part: str, *more: str) -> Any:
        found = run.get(part)
        return found and {count: _evaluation(one, *more) for count, one in found.items()}

    next_words = "user_counts" in run["test"]
    of_participants = () if run["newcomers"] or not next_words else OF_NEXT_WORDS
    base_model = run.get("newcomers_untouched")
    changed = {
        "rounds": [{part: entry[part] for part in ROUND} for entry in run["rounds"]],
        "curve": [{part: entry[part] for part in POINT} for entry in run["curve"]],
        "eval": _evaluation(run["eval"]),
        "test": _evaluation(run["test"], "group_f1", *of_participants),
        "adapted": each("adapted"),
        # the newcomers of several folds are evaluated together, user by user
        "newcomers": each("newcomers", *(OF_NEXT_WORDS if next_words else ["user_values"])),
        "newcomers_untouched": base_model and _evaluation(base_model),
        "newcomers_in_context": each("newcomers_in_context"),
        "personal": each("personal"),
    }
    return rounded({key: value for key, value in {**run, **changed}.items() if key in run and key != "maps"})


def _short_controls(found: Mapping[str, Any]) -> dict[str, Any]:
    return rounded({name: _evaluation(one) for name, one in found.items()})


def _evaluation(found: Mapping[str, Any], *more: str) -> dict[str, Any]:
    texts = OF_TEXTS if found.get("metric") == "perplexity" else ()
    return {part: found[part] for part in (*EVALUATION, *texts, *more) if part in found}


def rounded(value: Any, digits: int = 7) -> Any:
    """Round numbers to `digits`, but times to four digits, all results of replies, with their losses by conversation,
    to five, and the run's identity not at all; shorten paths to names."""
    if isinstance(value, Mapping):
        exact = {"identity": 17, "run": 17, "seconds": 4, "replies": 5}
        return {key: rounded(inner, exact.get(key, digits)) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner, digits) for inner in value]
    if isinstance(value, str) and Path(value).is_absolute():
        return Path(value).name
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def main() -> None:
    todo = {"keep": keep, "lay": lay, "controls": controls}
    if len(sys.argv) < 3 or sys.argv[1] not in todo:
        sys.exit(__doc__)
    for name in sys.argv[2:]:
        if not (RUNS / name if sys.argv[1] == "keep" else record_file(name)).exists():
            sys.exit(f"{name}: nothing with this name to {sys.argv[1]}")
        try:
            print(f"{name}: {todo[sys.argv[1]](name)} runs")
        except HomespunError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
