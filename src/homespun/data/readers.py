"""Any table of texts as a federation: which column is what, what is checked, what is left out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from homespun.core.errors import DataError, UnknownNameError, nearest, raise_faults
from homespun.data.records import Faults, Number, Record, format_of, missing_column, read_records
from homespun.data.table import Collector, Filters, TableFederation, build_table

VERSION = 1  # raise it when the same file gives other examples
NAMES_KEPT = 1000  # distinct column names remembered for a message; a file may have any number
FORMATS = ".jsonl, .jsonl.gz, .csv, .csv.gz or .parquet"


@dataclass(frozen=True)
class Columns:
    """What the columns of a corpus are called.

    `user` and `text` must be there. `context` and `label` may be absent under their default names; under
    any other name they were asked for and must be there too. `label` may be the context's column.
    """

    user: str = "user"
    context: str = "context"
    text: str = "text"
    label: str = "label"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(asdict(self).values()))

    @property
    def required(self) -> tuple[str, ...]:
        optional = (self.context, "context"), (self.label, "label")
        asked = [name for name, default in optional if name != default]
        return tuple(dict.fromkeys([self.user, self.text, *asked]))


def read_file(path: Path, *, columns: Columns, filters: Filters) -> TableFederation:
    """The federation a file holds; every fault of the file is reported at once, and none of its content."""
    _check_path(path)
    faults = Faults()
    records = read_records(path, faults, wanted=columns.names)
    collected = collect(records, columns, faults=faults, where=str(path), filters=filters)
    table = build_table(
        collected,
        name=path.name,
        fingerprint=fingerprint(_sha256(path), columns, filters),
        filters=filters,
    )
    return replace(table, place=path.resolve())


def collect(records: Iterable[Record], columns: Columns, *, faults: Faults, where: str, filters: Filters) -> Collector:
    """Checked examples; raises when there was any fault."""
    collected, seen = Collector(), _Seen(columns)
    names = columns.names
    for record in records:
        seen.note(record)
        cells = {name: _cell(record, name, as_text=name == columns.text) for name in names}
        for cell in cells.values():
            if isinstance(cell, _Fault):
                faults.add(f"{record.place}: {cell}")
        user, text = cells[columns.user], cells[columns.text]
        if user is not None and text is not None:
            collected.add(user, text, label=cells[columns.label], context=cells[columns.context])
    seen.report(where, faults)
    if not collected.users.index:
        raise DataError(f"{where}: the corpus is empty. At least one example is needed.")
    if filters.most_frequent_labels is not None and not collected.labels.index:
        raise DataError(f"{where}: most_frequent_labels needs labels. Name their column with --label-column.")
    if filters.min_context_examples is not None and not collected.contexts.index:
        raise DataError(f"{where}: min_context_examples needs contexts. Name their column with --context-column.")
    return collected


class _Seen:
    """Which columns there are. One that some records lack is each record's fault, one that is nowhere is one
    fault of the file, and an optional one that is nowhere is none."""

    def __init__(self, columns: Columns) -> None:
        self.columns, self.names = columns, columns.names
        self.present: dict[str, None] = {}
        self.lacking = {name: Faults() for name in self.names}
        self.filled: set[str] = set()

    def note(self, record: Record) -> None:
        if not record.values.keys() <= self.present.keys() and len(self.present) < NAMES_KEPT:
            self.present.update(dict.fromkeys(record.values))
        for name in self.names:
            if record.values.get(name) is not None:
                self.filled.add(name)
            else:
                self.lacking[name].add(f"{record.place}: no {name!r}. Either all examples have one or none.")

    def report(self, where: str, faults: Faults) -> None:
        nowhere = [
            missing_column(name, list(self.present))
            for name in self.columns.required
            if self.present and name not in self.filled and name not in self.present
        ]
        if nowhere and not faults.count:
            raise_faults(UnknownNameError, where, nowhere)
        for fault in nowhere:
            faults.add(fault)
        for name in self.names:
            if name in self.filled or (name in self.columns.required and name in self.present):
                faults.merge(self.lacking[name])
        faults.raise_if_any(where)


class _Fault(str):
    """What is wrong with one cell."""


def _cell(record: Record, name: str, *, as_text: bool) -> str | None:
    """The text of a cell, None where there is none, or a fault."""
    value: Any = record.values.get(name)
    if type(value) is str and value and value.isascii():  # nearly all there is
        return value
    if value is None:
        return None
    if isinstance(value, bool) and not as_text:
        value = str(value).lower()
    elif isinstance(value, Number) or not isinstance(value, str):
        if as_text or not isinstance(value, Number | int | float):
            expected = "text" if as_text else "text or a number"
            return _Fault(f"{name!r} is a {_kind(value)}. Expected {expected}.")
        value = str(value)
    if not as_text and value == "":
        return _Fault(f"{name!r} is empty.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return _Fault(f"{name!r} has half of a surrogate pair, which is not text.")
    return str(value)


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "truth value"
    if isinstance(value, Number | int | float):
        return "number"
    return {"list": "list", "dict": "JSON object"}.get(type(value).__name__, type(value).__name__)


def _check_path(path: Path) -> None:
    if format_of(path) is None:
        raise DataError(f"{path}: unknown format. The name must end in {FORMATS}.")
    if path.is_dir():
        raise DataError(f"{path}: a folder. Name a file that ends in {FORMATS}.")
    if not path.exists():
        beside = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else []
        raise DataError(f"{path}: no such file.{nearest(path.name, beside)}")


def fingerprint(content: str, columns: Columns, filters: Filters) -> str:
    """Changes when the content, the meaning of its columns or the filters do."""
    used = filters.model_dump()
    if used["min_context_examples"] is None:  # younger than the others: without it, earlier runs are still the same
        del used["min_context_examples"]
    parts = [VERSION, content, asdict(columns), used]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
