"""The record file of a comparison: all its runs in one JSON file, `docs/results/NAME.json`.

The runs of a comparison are similar, so each value is written once for all runs that share it:

    900                                    every run has this value
    {"by configuration": [900, 90]}        one value for each configuration
    {"by draw": [0, 1, 2]}                 one value for each draw (a seed, or a fold of a seed)
    {"by run": [[0.91, 0.90, 0.92], ...]}  for each configuration, one value for each draw

The order is that of the lists `configurations` and `draws` in the same file. Rounds and curves are tables with a column
for each name: a list has one value per round, anything else is the value of all rounds.

This format takes an eleventh of the space of one `results.json` per run. It is still plain JSON with one value per
line, so that `git diff`, `grep` and `jq` work on it, unlike on a compressed file. The same runs always give the same
bytes: the order is kept, and nothing depends on the time or the machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from homespun.core.errors import RunError
from homespun.system.disk import write_whole
from homespun.system.json_files import SCHEMA, read_json, without_nan

BY_CONFIGURATION, BY_DRAW, BY_RUN = "by configuration", "by draw", "by run"
TABLES = ("rounds", "curve")  # of a run: lists of entries with the same keys
LINE = 100  # characters of a value that stays on one line

Run: TypeAlias = tuple[str, str]  # configuration and draw


@dataclass(frozen=True)
class Record:
    """The kept part of a comparison. Data and controls depend only on the draw."""

    name: str
    titles: Mapping[str, str]  # by configuration
    draws: Sequence[str]  # named like the run folders: seed-0, seed-0-fold-1
    runs: Mapping[Run, Mapping[str, Any]]
    versions: Mapping[Run, Mapping[str, str]]
    data: Mapping[str, Mapping[str, Any]]  # by draw
    controls: Mapping[str, Mapping[str, Any]]  # by draw
    maps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by configuration, of the first draw
    similarity: Sequence[Mapping[str, Any]] = ()


def write_record(path: Path, record: Record) -> Path:
    def table(cells: Mapping[Run, Any]) -> Any:
        return deduplicated([[cells.get((key, draw)) for draw in record.draws] for key in record.titles])

    def row(cells: Mapping[str, Any]) -> Any:
        return deduplicated([[cells.get(draw) for draw in record.draws]])

    content = {
        "schema": SCHEMA,
        "name": record.name,
        "configurations": record.titles,
        "draws": list(record.draws),
        "versions": table(record.versions),
        "data": row(record.data),
        "controls": row(record.controls),
        "similarity": list(record.similarity),
        "runs": table({run: _with_tables(found, as_columns) for run, found in record.runs.items()}),
        "maps": record.maps,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, as_lines(without_nan(content)) + "\n")


def read_record(path: Path) -> Record:
    found = read_json(path, missing=f"{path}: no such record. `python docs/records.py keep NAME` writes one.")
    try:
        titles, draws = found["configurations"], found["draws"]
        runs = {
            (key, draw): (run, value_at(found["versions"], place, number))
            for place, key in enumerate(titles)
            for number, draw in enumerate(draws)
            if (run := value_at(found["runs"], place, number)) is not None
        }
        return Record(
            name=found["name"],
            titles=titles,
            draws=draws,
            runs={key: _with_tables(run, as_entries) for key, (run, _) in runs.items()},
            versions={key: versions for key, (_, versions) in runs.items()},
            data={draw: value_at(found["data"], 0, number) for number, draw in enumerate(draws)},
            controls={draw: value_at(found["controls"], 0, number) for number, draw in enumerate(draws)},
            maps=found["maps"],
            similarity=found["similarity"],
        )
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise RunError(f"{path}: not a record ({error!r}). Take the file from git again.") from None


def deduplicated(table: Sequence[Sequence[Any]]) -> Any:
    """Values by configuration and draw, with each written once for all runs that share it."""
    cells = [cell for row in table for cell in row]
    if _same(cells):
        return _plain(cells[0])
    if all(isinstance(cell, Mapping) and list(cell) == list(cells[0]) for cell in cells):
        return {key: deduplicated([[cell[key] for cell in row] for row in table]) for key in cells[0]}
    if _same(table):
        return {BY_DRAW: table[0]}
    if all(map(_same, table)) or any(isinstance(cell, Mapping) for cell in cells):
        return {BY_CONFIGURATION: [deduplicated([row]) for row in table]}
    return {BY_RUN: table}


def value_at(value: Any, configuration: int, draw: int) -> Any:
    """The value of one run: the inverse of `deduplicated`."""
    if not isinstance(value, Mapping):
        return value
    if BY_CONFIGURATION in value:
        return value_at(value[BY_CONFIGURATION][configuration], 0, draw)
    if BY_DRAW in value:
        return value[BY_DRAW][draw]
    if BY_RUN in value:
        return value[BY_RUN][configuration][draw]
    return {key: value_at(inner, configuration, draw) for key, inner in value.items()}


def as_columns(entries: Sequence[Any]) -> Any:
    """Entries with the same keys as a table of columns and the number of its rows."""
    return {"count": len(entries), "columns": _column(entries) if entries else {}}


def _column(values: Sequence[Any]) -> Any:
    if _same(values) and not isinstance(values[0], Mapping | list):
        return values[0]
    if all(isinstance(value, Mapping) and list(value) == list(values[0]) for value in values):
        return {key: _column([value[key] for value in values]) for key in values[0]}
    return list(values)


def as_entries(table: Mapping[str, Any]) -> list[Any]:
    """The inverse of `as_columns`."""

    def entry(column: Any, place: int) -> Any:
        if isinstance(column, Mapping):
            return {key: entry(inner, place) for key, inner in column.items()}
        return column[place] if isinstance(column, list) else column

    return [entry(table["columns"], place) for place in range(table["count"])]


def as_lines(value: Any, indent: str = "") -> str:
    """Compact JSON that can still be compared line by line."""
    short = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    nested = isinstance(value, list) and any(isinstance(item, list | dict) and len(str(item)) > LINE for item in value)
    if len(short) <= LINE or not (isinstance(value, Mapping) or nested):
        return short
    inner = indent + " "
    if isinstance(value, Mapping):
        lines = [f"{inner}{as_lines(key)}: {as_lines(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + as_lines(item, inner) for item in value) + f"\n{indent}]"


def _with_tables(run: Mapping[str, Any], change: Any) -> dict[str, Any]:
    return {**run, **{name: change(run[name]) for name in TABLES if name in run}}


def _same(values: Sequence[Any]) -> bool:
    """Whether all values are equal as JSON, where 1, 1.0 and true are different."""
    return len({json.dumps(value) for value in values}) == 1


def _plain(value: Any) -> Any:
    """A value that `value_at` returns unchanged."""
    if isinstance(value, Mapping):
        if value.keys() & {BY_CONFIGURATION, BY_DRAW, BY_RUN}:
            raise RunError(f"a record cannot hold the key {', '.join(value)}: rename it where it comes from.")
        return {key: _plain(inner) for key, inner in value.items()}
    return value
