"""Files as streams of records: JSONL, CSV (both also gzipped) and Parquet.

A record is what one line or row says, with the place where it says so. Faults are noted, with the place and
without the content, and reading goes on, so that one look at a file finds all that is wrong with it.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

from homespun.core.errors import DataError, nearest, raise_faults

LONGEST_LINE_BYTES = 10_000_000  # a line of this length or more is refused
SHOWN_FAULTS = 20
SHOWN_COLUMNS = 12
ROWS_PER_BATCH = 4096


class Record(NamedTuple):
    place: str
    values: Mapping[str, Any]


class Number(str):
    """A number of a JSON file, spelt as the file spells it."""


class Faults:
    """What is wrong with one file; the first few in words, the others as a count."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.count = 0

    def add(self, fault: str) -> None:
        self.count += 1
        if self.count <= SHOWN_FAULTS:
            self.shown.append(fault)

    def merge(self, others: Faults) -> None:
        for fault in others.shown:
            self.add(fault)
        self.count += others.count - len(others.shown)

    def raise_if_any(self, where: str) -> None:
        if not self.count:
            return
        if self.count == len(self.shown):
            raise_faults(DataError, where, self.shown)
        shown = "\n".join(f"  - {fault}" for fault in self.shown)
        more = self.count - len(self.shown)
        raise DataError(f"{where}: {self.count} faults:\n{shown}\n  and {more} more.")


def read_records(path: Path, faults: Faults, *, wanted: Sequence[str]) -> Iterator[Record]:
    """The records of a file, by the ending of its name."""
    reader = {"jsonl": read_jsonl, "csv": read_csv}.get(format_of(path) or "")
    try:
        if reader is None:
            yield from read_parquet(path, faults, wanted=wanted)
            return
        with _open(path) as stream:
            yield from reader(stream, faults)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        faults.add("the gzip data is broken or cut off. Compress the file again.")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or 'input/output error'}).") from None


def format_of(path: Path) -> str | None:
    """`jsonl`, `csv` or `parquet`; None for any other ending."""
    name = path.name.lower()
    inner = name.removesuffix(".gz")
    for kind in ("jsonl", "csv"):
        if inner.endswith("." + kind):
            return kind
    return "parquet" if name.endswith(".parquet") else None


def _open(path: Path) -> IO[bytes]:
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return path.open("rb")


def read_jsonl(stream: IO[bytes], faults: Faults) -> Iterator[Record]:
    for number, line in _lines(stream, faults):
        place = f"line {number}"
        try:
            values = _DECODE(line.strip(" \t\r\n"))
        except (ValueError, RecursionError):
            faults.add(f"{place}: not JSON. Each line must be one JSON object.")
            continue
        if isinstance(values, dict):
            yield Record(place, values)
        else:
            faults.add(f'{place}: not a JSON object. Expected {{"user": ..., "text": ...}}.')


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)  # NaN and Infinity are not JSON


_DECODE = json.JSONDecoder(parse_int=Number, parse_float=Number, parse_constant=_refuse).decode


def read_csv(stream: IO[bytes], faults: Faults) -> Iterator[Record]:
    # strict: an unclosed quote is an error, not a field that swallows the rest of the file
    reader = csv.reader((line for _, line in _lines(stream, faults, keep_all=True)), strict=True)
    header: list[str] = []
    try:
        for cells in reader:
            place = f"line {reader.line_num}"
            if not cells:
                continue
            if not header:
                header = cells
                if len(set(header)) < len(header):
                    faults.add(f"{place}: a column name occurs twice in the header.")
                continue
            if len(cells) != len(header):
                faults.add(f"{place}: {len(cells)} cells where the header has {len(header)}.")
                continue
            yield Record(place, dict(zip(header, cells, strict=True)))
    except csv.Error:
        limit = csv.field_size_limit()
        faults.add(f"line {reader.line_num}: not CSV (a stray or unclosed quote, or a cell over {limit} characters).")


def _lines(stream: IO[bytes], faults: Faults, *, keep_all: bool = False) -> Iterator[tuple[int, str]]:
    """Numbered lines as text, never holding more than the limit of one.

    Blank and faulty lines are left out, or with `keep_all` given as well as they can be, for a reader that
    does its own counting.
    """
    number = 0
    while line := stream.readline(LONGEST_LINE_BYTES):
        number += 1
        sound = True
        if len(line) == LONGEST_LINE_BYTES and not line.endswith(b"\n"):
            faults.add(f"line {number}: {LONGEST_LINE_BYTES:,} bytes or longer. Split it into several.")
            while line and not line.endswith(b"\n"):
                line = stream.readline(LONGEST_LINE_BYTES)
            sound, line = False, b"\n"
        encoding = "utf-8-sig" if number == 1 else "utf-8"
        try:
            text = line.decode(encoding)
        except UnicodeDecodeError as error:
            faults.add(f"line {number}: not UTF-8 (at byte {error.start + 1}). Convert the file to UTF-8.")
            sound, text = False, line.decode(encoding, "replace")
        if keep_all or (sound and text.strip()):
            yield number, text


def read_parquet(path: Path, faults: Faults, *, wanted: Sequence[str]) -> Iterator[Record]:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    row = 0
    try:
        with parquet.ParquetFile(path) as file:
            present = set(file.schema_arrow.names)
            # all columns are named even when only some are read: a misspelt one is searched among them
            unread: dict[str, Any] = dict.fromkeys(file.schema_arrow.names)
            for batch in file.iter_batches(ROWS_PER_BATCH, columns=[name for name in wanted if name in present]):
                for values in batch.to_pylist():
                    row += 1
                    yield Record(f"row {row}", {**unread, **values})
    except UnicodeDecodeError:
        faults.add(f"after row {row}: not UTF-8.")
    except (arrow.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        faults.add("not a Parquet file, or broken or cut off. Write the file again.")


def missing_column(name: str, present: Sequence[str]) -> str:
    """What to say when no record has a column."""
    shown = ", ".join(repr(column[:40]) for column in list(present)[:SHOWN_COLUMNS])
    more = ", ..." if len(present) > SHOWN_COLUMNS else ""
    return f"no column {name!r}.{nearest(name, present)} Columns: {shown}{more}."
