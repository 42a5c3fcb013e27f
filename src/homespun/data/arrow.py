"""Parquet files and Arrow tables as records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import IO, Any

from homespun.data.columns import Columns
from homespun.data.limited_streams import EXAMPLE_BYTES, ByteLimit
from homespun.data.parquet_pages import BrokenParquetError, page_bytes, read_footer
from homespun.data.records import Faults, Record

ROWS_PER_BATCH = 4096
# Through dictionary or delta encoding a small page can hold one long text in every row. Batches are kept so short that
# they stay below this size even then.
BATCH_BYTES = 64_000_000


def read_parquet(file: IO[bytes], faults: Faults, *, columns: Columns, byte_limit: ByteLimit) -> Iterator[Record]:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    try:
        rows = _rows_at_once(file, columns, byte_limit)
        with parquet.ParquetFile(file) as opened:
            schema = opened.schema_arrow
            if not check_types(schema, columns, faults):
                return
            batches = opened.iter_batches(rows, columns=readable_columns(schema, columns))
            yield from batch_records(batches, schema.names, faults, spend=byte_limit.spend)
    except (arrow.ArrowException, OSError, BrokenParquetError, UnicodeDecodeError) as error:
        if isinstance(error, PermissionError):
            raise
        faults.add("not a Parquet file, or damaged or truncated. Write the file again.")


def _rows_at_once(file: IO[bytes], columns: Columns, byte_limit: ByteLimit) -> int:
    """The number of rows per batch. Raises if all unpacked pages together, or all rows, exceed the limit."""
    footer = read_footer(file, (*columns.chosen, *columns.automatic))
    byte_limit.require(footer.rows * EXAMPLE_BYTES)
    largest, total = 1, 0
    for chunk in footer.chunks:
        for size in page_bytes(file, chunk):
            largest, total = max(largest, size), total + size
            byte_limit.require(total)
    file.seek(0)
    return max(1, min(ROWS_PER_BATCH, BATCH_BYTES // largest))


def check_types(schema: Any, columns: Columns, faults: Faults) -> bool:
    """Whether each chosen column occurs at most once and has a readable type."""
    found = True
    for name in columns.chosen:
        places = schema.get_all_field_indices(name)
        if len(places) > 1:
            faults.add(f"{len(places)} columns are named {name!r}. Rename all but one.")
            found = False
        for kind in [_unreadable_type(schema.field(place).type, as_text=name == columns.text) for place in places]:
            if kind:
                expected = "text" if name == columns.text else "text, numbers or dates"
                faults.add(f"{name!r} is a column of type {kind}. Expected {expected}.")
                found = False
    return found


def readable_columns(schema: Any, columns: Columns) -> list[str]:
    """The chosen columns that are present, and the automatic ones that are present once, with a readable type."""
    found = [name for name in columns.chosen if name in set(schema.names)]
    for name in columns.automatic:
        places = schema.get_all_field_indices(name)
        if len(places) == 1 and not _unreadable_type(schema.field(places[0]).type, as_text=False):
            found.append(name)
    return found


def _unreadable_type(kind: Any, *, as_text: bool) -> str:
    """The name of an unreadable type, or an empty string. Numbers in a text column are reported row by row."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    readable = [_is_bytes(kind), types.is_null(kind), types.is_boolean(kind), types.is_floating(kind)]
    readable += [types.is_integer(kind), types.is_string(kind), types.is_large_string(kind), types.is_string_view(kind)]
    if not as_text:
        readable += [types.is_decimal(kind), types.is_date(kind), types.is_timestamp(kind), types.is_time(kind)]
    return "" if any(readable) else str(kind).split("<")[0].split("[")[0].split("(")[0]


def _is_bytes(kind: Any) -> bool:
    from pyarrow import types

    sized = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    return sized or types.is_binary_view(kind)


def batch_records(
    batches: Iterable[Any], names: Iterable[str], faults: Faults, *, spend: Callable[[int], None] = lambda _: None
) -> Iterator[Record]:
    """The rows of Arrow batches with one schema. `spend` receives the size of each batch in bytes.

    Records name all columns, even those that are not read, so that an error can suggest the nearest name.
    """
    import pyarrow as arrow

    unread: dict[str, Any] = dict.fromkeys(names)
    converters: list[Callable[[Any], Any]] = []
    row = 0
    for batch in batches:
        try:
            converters = converters or [_converter_for(kind) for kind in batch.schema.types]
            columns = [convert(column) for convert, column in zip(converters, batch.columns, strict=True)]
            spend(sum(column.nbytes for column in columns))
            cells = [column.to_pylist() for column in columns]
        except (UnicodeDecodeError, arrow.ArrowInvalid):
            faults.add(f"after row {row}: not UTF-8.")
            return
        read = batch.schema.names
        for values in zip(*cells, strict=True) if cells else repeat((), batch.num_rows):
            row += 1
            yield Record(f"row {row}", {**unread, **dict(zip(read, values, strict=True))})


def _converter_for(kind: Any) -> Callable[[Any], Any]:
    """A function that converts a column of this type to text or numbers.

    Bytes are decoded as UTF-8; decimals, dates and times become text.
    """
    import pyarrow as arrow
    from pyarrow import types

    if types.is_dictionary(kind):
        inner = _converter_for(kind.value_type)
        return lambda column: inner(column.dictionary_decode())
    if _is_bytes(kind) or types.is_decimal(kind) or types.is_temporal(kind):
        return lambda column: column.cast(arrow.string())
    return lambda column: column
