"""Keep the numbers behind the pages, so that a comparison of many hours can go on where another machine left it.

    python docs/records.py keep fedembed-mnist    finished runs of runs/fedembed-mnist -> docs/results/fedembed-mnist
    python docs/records.py lay fedembed-mnist     and back: `homespun compare` then trains only what is missing

A record is a run's `results.json` without what no page needs: maps, thousands of users one by one, digits beyond the
seventh, and where the corpus lay. It says itself which run it is; `homespun compare` refuses any other than the run
asked for.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from homespun.results import RESULTS_FILE, read_results

RUNS, RECORDS = Path("runs"), Path("docs/results")
MANY_USERS = 1000


def keep(name: str) -> list[Path]:
    """Write a record of every finished run of this comparison."""
    return [
        _write(RECORDS / name / f"{place.parent.name}-{place.name}.json", _shortened(read_results(place)))
        for place in sorted(found.parent for found in (RUNS / name / "runs").glob(f"*/*/{RESULTS_FILE}"))
    ]


def lay(name: str) -> list[Path]:
    """Put every record where `homespun compare` looks for its run; what is there already stays."""
    laid = []
    for record in sorted((RECORDS / name).glob("*.json")):
        configuration, _, draw = record.stem.partition("-seed-")
        place = RUNS / name / "runs" / configuration / f"seed-{draw}" / RESULTS_FILE
        if not place.exists():
            laid.append(_write(place, json.loads(record.read_text(encoding="utf-8"))))
    return laid


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: inner for key, inner in value.items() if key != "maps" and not _is_long(key, inner)}
        return {
            key: inner if key == "identity" else Path(inner).name if _is_place(key, inner) else _shortened(inner)
            for key, inner in kept.items()
        }
    if isinstance(value, list):
        return [_shortened(inner) for inner in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _is_long(key: str, value: Any) -> bool:
    return key == "user_values" and len(value) > MANY_USERS


def _is_place(key: str, value: Any) -> bool:
    """Whether this may be a whole path on this machine."""
    return key in ("source", "folder") and isinstance(value, str)


def _write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    return path


def main() -> None:
    todo = {"keep": keep, "lay": lay}
    if len(sys.argv) < 3 or sys.argv[1] not in todo:
        sys.exit(__doc__)
    for name in sys.argv[2:]:
        print(f"{name}: {len(todo[sys.argv[1]](name))} runs")


if __name__ == "__main__":
    main()
