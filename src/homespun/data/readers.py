"""Reads tables of texts (JSONL, JSON, CSV, TSV, Parquet) as federations and checks their rows."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

from pydantic import PositiveInt, field_validator

from homespun.core.errors import DataError, SettingsError, UnknownNameError, nearest, raise_faults
from homespun.data.arrow import read_parquet
from homespun.data.columns import Columns, look_like_names, missing_column, name_conversations
from homespun.data.conversations import ConversationIndex
from homespun.data.csv_records import read_csv
from homespun.data.json_records import read_json
from homespun.data.limited_streams import EXAMPLE_BYTES, ByteLimit, HashedStream, unpack
from homespun.data.profiles import ProfileIndex
from homespun.data.records import Faults, Number, Record
from homespun.data.table import Collector, Filters, TableFederation, build_table
from homespun.data.text_decoding import EXPORT_AS_CSV, UndecodableLine, require_encoding, to_utf8
from homespun.data.text_files import is_text_file

VERSION = 1  # increment when the same file gives different examples
NAMES_KEPT = 1000  # distinct column names stored for error messages; a file may have more
FORMATS = ".jsonl, .json, .csv, .tsv (each also with .gz) or .parquet"
# Settings added in later versions, with their defaults
ADDED_LATER = {"min_context_examples": None, "encoding": None, "delimiter": None, "quotes": True, "max_words": None}
KINDS = ("jsonl", "json", "csv", "tsv")


class FileSettings(Filters):
    """The examples and users that take part, and how a file is read."""

    encoding: str | None = None
    """Encoding of a text file without a byte order mark. Not set: UTF-8."""
    delimiter: str | None = None
    """The character between CSV cells, or tab. Not set: detected in the header line."""
    quotes: bool = True
    """Whether CSV cells may be enclosed in double quotes."""
    max_bytes: PositiveInt | None = None
    """Maximum size of an unpacked file in bytes. Not set: 250 times its size, between 256 MB and 20 GB."""

    @field_validator("encoding")
    @classmethod
    def _known(cls, encoding: str | None) -> str | None:
        try:
            return encoding and require_encoding(encoding)
        except SettingsError as error:
            raise ValueError(str(error).removeprefix("encoding: ")) from None

    @field_validator("delimiter")
    @classmethod
    def _one_character(cls, delimiter: str | None) -> str | None:
        found = {"tab": "\t", "\\t": "\t"}.get(delimiter or "", delimiter)
        if found is not None and (len(found) != 1 or found in '"\r\n'):
            raise ValueError("expected one character other than a quote or line break, or tab")
        return found


def read_file(path: Path, *, columns: Columns, settings: FileSettings) -> TableFederation:
    """The federation in a file. All faults are reported at once; messages show none of the file's content."""
    _check_path(path)
    try:
        with path.open("rb") as file:
            collected, content = _read(file, path, columns=columns, settings=settings)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or 'input/output error'}).") from None
    table = build_table(
        collected, name=path.name, fingerprint=fingerprint(content, columns, settings), filters=settings
    )
    return replace(table, place=path.resolve())


def _read(file: IO[bytes], path: Path, *, columns: Columns, settings: FileSettings) -> tuple[Collector, str]:
    """The examples of a file, and the SHA-256 of its bytes."""
    faults, where = Faults(), str(path)
    byte_limit = ByteLimit(where, packed=os.fstat(file.fileno()).st_size, max_bytes=settings.max_bytes)

    def collected(records: Iterator[Record]) -> Collector:
        counted = _counted(records, byte_limit)
        return collect(counted, columns, faults=faults, where=where, filters=settings)

    if format_of(path) == "parquet":
        content = _sha256(file)
        found = collected(read_parquet(file, faults, columns=columns, byte_limit=byte_limit))
        if _sha256(file) != content:
            raise DataError(f"{path}: changed while it was read. Read it again when no process writes to it.")
        return found, content
    hashed = HashedStream(file)
    found = collected(_text_records(hashed, path, faults, columns=columns, settings=settings, byte_limit=byte_limit))
    return found, hashed.sha256()


def _counted(records: Iterator[Record], byte_limit: ByteLimit) -> Iterator[Record]:
    for record in records:
        byte_limit.spend(EXAMPLE_BYTES)
        yield record


def _text_records(
    hashed: HashedStream, path: Path, faults: Faults, *, columns: Columns, settings: FileSettings, byte_limit: ByteLimit
) -> Iterator[Record]:
    """The records of a text file. Its suffix decides the format."""
    kind = format_of(path)
    try:
        packed = unpack(hashed, byte_limit, gzipped=path.name.lower().endswith(".gz"))
        stream = to_utf8(packed, where=str(path), encoding=settings.encoding)
        if kind in ("jsonl", "json"):
            yield from read_json(stream, faults)
        else:
            default = "\t" if kind == "tsv" else ","
            yield from read_csv(
                stream,
                faults,
                columns=columns,
                delimiter=settings.delimiter,
                default=default,
                quotes=settings.quotes,
            )
    except (EOFError, gzip.BadGzipFile, zlib.error):
        faults.add("the gzip data is damaged or truncated. Compress the file again.")
    except UndecodableLine as error:
        faults.add(str(error))


def format_of(path: Path) -> str | None:
    """`jsonl`, `json`, `csv`, `tsv` or `parquet`; None for any other suffix."""
    name = path.name.lower()
    inner = name.removesuffix(".gz")
    if name.endswith(".parquet"):
        return "parquet"
    return next((kind for kind in KINDS if inner.endswith("." + kind)), None)


def collect(records: Iterable[Record], columns: Columns, *, faults: Faults, where: str, filters: Filters) -> Collector:
    """Check the records and collect the examples. Raises if there is any fault."""
    _check_profile(columns, where)
    conversations, profile = ConversationIndex(columns), ProfileIndex(columns.profile_columns)
    collected, seen = Collector(conversations, profile), _ColumnCheck(columns, conversations)
    names = columns.names
    for record in records:
        seen.note(record)
        cells = {name: _cell(record, name, as_text=name == columns.text) for name in names}
        for cell in cells.values():
            if isinstance(cell, _Fault):
                faults.add(f"{record.place}: {cell}")
        named = [_optional_cell(record, name, faults) for name in (*conversations.chosen, *profile.columns)]
        user, text = cells[columns.user], cells[columns.text]
        if user is not None and text is not None:
            collected.add(
                user,
                text,
                label=cells[columns.label],
                context=cells[columns.context],
                values=record.values,
                profile=named[len(conversations.chosen) :],
            )
    seen.report(where, faults)
    collected.note_columns(seen.shown)
    if not collected.users.index:
        raise DataError(f"{where}: the corpus is empty. At least one example is needed.")
    if filters.most_frequent_labels is not None and not collected.labels.index:
        raise DataError(f"{where}: most_frequent_labels needs labels. Name their column with --label-column.")
    if filters.min_context_examples is not None and not collected.contexts.index:
        raise DataError(f"{where}: min_context_examples needs contexts. Name their column with --context-column.")
    if (filters.max_words is not None or conversations.chosen) and collected.conversations() is None:
        asked = "max_words needs conversations" if not conversations.chosen else "no row names a conversation"
        raise DataError(f"{where}: {asked}. {name_conversations(seen.shown)}")
    return collected


class _ColumnCheck:
    """Checks which columns are present.

    A column that only some records lack is a fault of each of these records. A required column that all records lack
    is one fault of the file. An optional column that all records lack is no fault.
    """

    def __init__(self, columns: Columns, conversations: ConversationIndex) -> None:
        self.conversations = conversations
        self.columns, self.names, self.required = columns, columns.names, set(columns.required)
        self.present: dict[str, None] = {}
        self.lacking = {name: Faults() for name in self.names}
        self.filled: set[str] = set()
        self.recurs = False  # a cell equals its column's name, so the first line is not a header

    def note(self, record: Record) -> None:
        if not record.values.keys() <= self.present.keys() and len(self.present) < NAMES_KEPT:
            self.present.update(dict.fromkeys(record.values))
            self.conversations.notice(record.values)
        if not self.recurs and not self.present.keys() >= self.required:
            self.recurs = any(name and name == cell for name, cell in record.values.items())
        for name in self.names:
            if record.values.get(name) is not None:
                self.filled.add(name)
            else:
                self.lacking[name].add(f"{record.place}: no {name!r}. Either all examples have one or none.")

    @property
    def shown(self) -> tuple[str, ...]:
        """The names of the columns, if error messages may show them."""
        return tuple(self.present) if look_like_names(self.present) and not self.recurs else ()

    def report(self, where: str, faults: Faults) -> None:
        nowhere = [
            missing_column(name, list(self.present), show=bool(self.shown))
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
    """The fault of one cell."""


def _cell(record: Record, name: str, *, as_text: bool) -> str | None:
    """The text of a cell, None if it is absent, or a fault."""
    value: Any = record.values.get(name)
    if type(value) is str and value and value.isascii():  # the usual case, checked first for speed
        return value
    if value is None:
        return None
    if isinstance(value, bool) and not as_text:
        value = str(value).lower()
    elif isinstance(value, Number) or not isinstance(value, str):
        if as_text or not isinstance(value, Number | int | float | Decimal | date | time):
            expected = "text" if as_text else "text or a number"
            return _Fault(f"{name!r} is a {_kind(value)}. Expected {expected}.")
        value = str(value)
    if not as_text and value == "":
        return _Fault(f"{name!r} is empty.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return _Fault(f"{name!r} contains an unpaired surrogate, which is not valid text.")
    return str(value)


def _optional_cell(record: Record, name: str, faults: Faults) -> str | None:
    """The text of a cell without white space around it, or None if it is absent, blank or a fault."""
    if isinstance(cell := _cell(record, name, as_text=False), _Fault):
        if record.values[name] != "":
            faults.add(f"{record.place}: {cell}")
        return None
    return None if cell is None else cell.strip() or None


def _check_profile(columns: Columns, where: str) -> None:
    for kind, name in (("user", columns.user), ("text", columns.text)):
        if name in columns.profile_columns:
            raise SettingsError(
                f"{where}: {name!r} is the column of the {kind}, which is no profile. Name columns that many users "
                "share a value of: --profile-column gender,age."
            )


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, Number | int | float):
        return "number"
    return {"list": "list", "dict": "JSON object"}.get(type(value).__name__, type(value).__name__)


def _check_path(path: Path) -> None:
    if path.suffix.lower() in (".xlsx", ".xls", ".xlsm", ".ods"):
        raise DataError(f"{path}: a spreadsheet. {EXPORT_AS_CSV}, under a name that ends in .csv.")
    if is_text_file(path):
        raise DataError(f"{path}: a text file holds one user. For several, name the folder with their text files.")
    if format_of(path) is None:
        raise DataError(f"{path}: unknown format. The name must end in {FORMATS}.")
    if not os.path.exists(path):  # unlike path.exists(), it never raises
        beside = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else []
        raise DataError(f"{path}: no such file.{nearest(path.name, beside)}")


def fingerprint(content: str, columns: Columns, filters: Filters) -> str:
    """A hash of the content, the column names and the filters."""
    used = filters.model_dump(exclude={"max_bytes"})
    for name, default in ADDED_LATER.items():  # defaults are left out, so that fingerprints of earlier runs stay valid
        if used.get(name) == default:
            used.pop(name, None)
    parts = [VERSION, content, columns.identity(), used]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _sha256(file: IO[bytes]) -> str:
    """The hash of a whole file. Rewinds the file."""
    file.seek(0)
    content = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    file.seek(0)
    return content
