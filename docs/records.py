"""Keep the numbers behind the pages, so that a comparison of many hours can go on where another machine left it.

    python docs/records.py keep fedembed-mnist    finished runs of runs/fedembed-mnist -> docs/results/fedembed-mnist
    python docs/records.py lay fedembed-mnist     and back: `homespun compare` then trains only what is missing
    python docs/records.py controls fedperc-sotu  work out the controls of language anew: they need no trained model

A record is a run's `results.json` without what no page needs: maps, hundreds of users one by one, digits beyond the
seventh, and where the corpus lay. It says itself which run it is; `homespun compare` refuses any other than the run
asked for.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from homespun.controls import IN_CONTEXT, evaluate_controls, newcomer_controls
from homespun.experiment import Draw, Experiment, open_configuration, read_experiment
from homespun.files import read_json, write_json
from homespun.results import RESULTS_FILE, control_summary, read_results, summary

RUNS, RECORDS, EXPERIMENTS = Path("runs"), Path("docs/results"), Path("experiments")
MANY_USERS = 500


def keep(name: str) -> list[Path]:
    """Write a record of every finished run of this comparison."""
    kept = []
    for place in sorted(found.parent for found in (RUNS / name / "runs").glob(f"*/*/{RESULTS_FILE}")):
        record = RECORDS / name / f"{place.parent.name}-{place.name}.json"
        record.parent.mkdir(parents=True, exist_ok=True)
        kept.append(write_json(record, shortened(read_results(place)), indent=None))
    return kept


def lay(name: str) -> list[Path]:
    """Put every record where `homespun compare` looks for its run; what was begun there goes on as it is."""
    laid = []
    for record in sorted((RECORDS / name).glob("*.json")):
        configuration, _, draw = record.stem.rpartition("-seed-")
        place = RUNS / name / "runs" / configuration / f"seed-{draw}"
        if not place.exists():
            place.mkdir(parents=True)
            laid.append(write_json(place / RESULTS_FILE, read_json(record, missing=f"{record}: gone")))
    return laid


def controls(name: str) -> list[Path]:
    """Write the controls of every draw into its records, trained by whichever machine: they are of the base model and
    the corpus alone."""
    experiment, written = read_experiment(EXPERIMENTS / f"{name}.toml"), []
    for draw in experiment.draws:
        places = sorted((RECORDS / name).glob(f"*-{draw.folder}.json"))
        if not places:
            continue
        known, new = _controls(experiment, draw)
        for place in places:
            results = read_json(place, missing=f"{place}: gone")
            (only,) = results["configurations"].values()
            (run,) = only["runs"]
            _require_same_tokens(place, results["controls"]["runs"][0]["untouched"], known["untouched"])
            run["newcomers_untouched"] = new.get("untouched")
            run["newcomers_in_context"] = {
                count.removeprefix(IN_CONTEXT): one for count, one in new.items() if count.startswith(IN_CONTEXT)
            }
            only["summary"] = summary(only["runs"])
            results["controls"] = {"runs": [known], "summary": control_summary([known], [draw.seed])}
            written.append(write_json(place, rounded(results), indent=None))
    return written


def _controls(experiment: Experiment, draw: Draw) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of participants and of newcomers."""
    first, federation = next(iter(experiment.configurations.values())), experiment.data.load()
    with tempfile.TemporaryDirectory() as folder:
        run = open_configuration(experiment, first, federation, place=Path(folder), draw=draw)
        with run:
            found = evaluate_controls(run), newcomer_controls(run)
    known, new = ({name: one.to_dict() for name, one in some.items()} for some in found)
    return known, new


def _require_same_tokens(place: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    if before["user_tokens"] != now["user_tokens"]:
        sys.exit(f"{place}: it was scored on other tokens than these. Is the corpus another one?")


def shortened(results: dict[str, Any]) -> dict[str, Any]:
    """Without what no page needs."""
    (only,) = results["configurations"].values()
    for run in only["runs"]:
        run.pop("maps", None)
        for part in ("eval", "test"):
            if len(run[part].get("user_values", ())) > MANY_USERS:
                del run[part]["user_values"]
    for control in results["controls"]["runs"]:
        for one in control.values():
            if len(one.get("user_values", ())) > MANY_USERS:
                del one["user_values"]
    return rounded(results)


def rounded(value: Any, digits: int = 7) -> Any:
    """So many digits of every number, all of them in what says which run it is; of paths the name."""
    if isinstance(value, dict):
        return {key: rounded(inner, 17 if key in ("identity", "run") else digits) for key, inner in value.items()}
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
        if not (RUNS / name if sys.argv[1] == "keep" else RECORDS / name).exists():
            sys.exit(f"{name}: nothing of that name to {sys.argv[1]}")
        print(f"{name}: {len(todo[sys.argv[1]](name))} runs")


if __name__ == "__main__":
    main()
