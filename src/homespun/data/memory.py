"""Loads data that is already in memory: rows, data frames, Arrow tables, Hugging Face data sets.

Types are recognized by their methods, so that none of these libraries needs to be installed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from homespun.core.errors import DataError
from homespun.data.arrow import batch_records, check_types, readable_columns
from homespun.data.columns import Columns
from homespun.data.readers import collect, fingerprint
from homespun.data.records import Faults, Record
from homespun.data.table import Collector, Filters, TableFederation, build_table

EXPECTED = "Pass a list of dicts, a pandas frame, a pyarrow table or a Hugging Face data set"


def read_rows(data: Any, *, columns: Columns, filters: Filters) -> TableFederation:
    """The federation in these rows. Its name and fingerprint depend on the content alone, not on its type."""
    faults, where = Faults(), type(data).__name__
    collected = collect(_records(data, columns, faults), columns, faults=faults, where=where, filters=filters)
    content = _sha256(collected, with_conversations=bool(columns.conversation))
    return build_table(
        collected,
        name=f"rows-{content[:8]}",
        fingerprint=fingerprint(content, columns, filters),
        filters=filters,
    )


def _records(data: Any, columns: Columns, faults: Faults) -> Iterator[Record]:
    kind = type(data).__name__
    if isinstance(data, Mapping):  # one list per column or one data set per split: ambiguous
        raise DataError(f"a {kind}. {EXPECTED}, for example data['train'].")
    if hasattr(data, "columns") and hasattr(data, "itertuples"):
        return _frame_records(data, columns, faults)
    if hasattr(data, "__arrow_c_stream__"):
        return _arrow_records(data, columns, faults)
    if isinstance(data, Iterable) and not isinstance(data, bytes | bytearray | np.ndarray):
        return _row_records(data, columns, faults)
    raise DataError(f"{kind}: not a table. {EXPECTED}.")


def _row_records(rows: Any, columns: Columns, faults: Faults) -> Iterator[Record]:
    """Records from any iterable of mappings."""
    names = getattr(rows, "column_names", None)
    if names and hasattr(rows, "select_columns"):  # do not read other columns, which may hold pictures
        rows = rows.select_columns([name for name in (*columns.chosen, *columns.automatic) if name in names])
    unread: dict[str, Any] = dict.fromkeys(names or ())
    for number, row in enumerate(rows, start=1):
        place = f"row {number}"
        if isinstance(row, Mapping):
            yield Record(place, unread | {str(name): _plain(cell) for name, cell in row.items()})
        else:
            faults.add(f'{place}: not a dict. Expected {{"user": ..., "text": ...}}.')


def _frame_records(frame: Any, columns: Columns, faults: Faults) -> Iterator[Record]:
    names = [str(name) for name in frame.columns]
    doubled = [name for name in columns.chosen if names.count(name) > 1]
    for name in doubled:
        faults.add(f"{names.count(name)} columns are named {name!r}. Rename all but one.")
    if doubled:
        return
    wanted = [
        name for name in (*columns.chosen, *columns.automatic) if name in frame.columns and names.count(name) == 1
    ]
    cells = [frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in wanted]
    unread: dict[str, Any] = dict.fromkeys(names)
    for number in range(len(frame)):
        values = (_plain(column[number]) for column in cells)
        yield Record(f"row {number + 1}", unread | dict(zip(wanted, values, strict=True)))


def _arrow_records(table: Any, columns: Columns, faults: Faults) -> Iterator[Record]:
    import pyarrow as arrow

    with arrow.RecordBatchReader.from_stream(table) as reader:
        if check_types(reader.schema, columns, faults):
            wanted = readable_columns(reader.schema, columns)
            yield from batch_records((batch.select(wanted) for batch in reader), reader.schema.names, faults)


def _plain(cell: Any) -> Any:
    """A cell as a Python object; None for a missing value (NaN, NaT, NA)."""
    if type(cell) is str:
        return cell
    if isinstance(cell, np.generic):
        cell = cell.item()
    is_missing = type(cell).__name__ in ("NAType", "NaTType") or (isinstance(cell, float) and cell != cell)
    return None if is_missing else cell


def _sha256(collected: Collector, *, with_conversations: bool) -> str:
    """The hash of all examples, in order.

    Automatic conversations are not part of it, because data were hashed before there were any. The fingerprint of a
    corpus's replies covers them.
    """
    digest = hashlib.sha256()
    for names in (collected.users.index, collected.labels.index, collected.contexts.index, collected.texts):
        digest.update(json.dumps(list(names)).encode())
    digest.update(np.frombuffer(collected.rows, dtype=np.int64).astype("<i8").tobytes())
    conversations = collected.conversations() if with_conversations else None
    if conversations is not None:
        digest.update(conversations.astype("<i8").tobytes())
    if profiles := collected.profile_index.resolve(range(len(collected.users.index))):
        digest.update(json.dumps([profiles.named(row) for row in profiles.number_of.tolist()]).encode())
    return digest.hexdigest()
