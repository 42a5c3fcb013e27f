"""Keep the numbers behind the pages, so that a comparison of many hours can go on where another machine left it.

    python docs/records.py keep fedembed-mnist    finished runs of runs/fedembed-mnist -> docs/results/fedembed-mnist
    python docs/records.py lay fedembed-mnist     and back: `homespun compare` then trains only what is missing

A record is a run's `results.json` without what no page needs: maps, hundreds of users one by one, digits beyond the
seventh, and where the corpus lay. It says itself which run it is; `homespun compare` refuses any other than the run
asked for.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from homespun.files import read_json, write_json
from homespun.results import RESULTS_FILE, read_results

RUNS, RECORDS = Path("runs"), Path("docs/results")
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
    todo = {"keep": keep, "lay": lay}
    if len(sys.argv) < 3 or sys.argv[1] not in todo:
        sys.exit(__doc__)
    for name in sys.argv[2:]:
        if not (RUNS / name if sys.argv[1] == "keep" else RECORDS / name).exists():
            sys.exit(f"{name}: nothing of that name to {sys.argv[1]}")
        print(f"{name}: {len(todo[sys.argv[1]](name))} runs")


if __name__ == "__main__":
    main()
