"""The uncompressed sizes of the pages of a Parquet file, from the header of each page.

The footer of a file states sizes too, but they may be wrong: a reader decompresses what the page headers say. Footer
and page headers are structs in Thrift's compact protocol. They are parsed here because pyarrow does not expose page
headers, and because it aborts the process on some broken footers when asked for a column's offset.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import IO, Any

MAGIC = b"PAR1"
FIRST_WINDOW, LARGEST_WINDOW = 2**12, 2**24  # bytes read for a page header, which may hold the min and max values
MAX_DEPTH = 12  # of nested structs and lists

_TRUE, _FALSE, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _STRUCT = 1, 2, 3, (4, 5, 6), 7, 8, (9, 10), 12


class BrokenParquetError(ValueError):
    """A footer or page header cannot be parsed."""


@dataclass(frozen=True)
class ColumnChunk:
    """The location of a column's pages in one row group."""

    start: int
    size: int


@dataclass(frozen=True)
class Footer:
    rows: int
    chunks: tuple[ColumnChunk, ...]


def read_footer(file: IO[bytes], names: Collection[str]) -> Footer:
    """The number of rows of a file, and the locations of the pages of the named columns."""
    end = file.seek(0, os.SEEK_END)
    if end < 12:
        raise BrokenParquetError("too short")
    file.seek(end - 8)
    last = file.read(8)
    size = int.from_bytes(last[:4], "little")
    if last[4:] != MAGIC or size > end - 12:
        raise BrokenParquetError("no footer")
    file.seek(end - 8 - size)
    groups = [_require(dict, group) for group in _require(list, _Cursor(file.read(size)).struct().get(4, []))]
    wanted = {name.encode("utf-8", "surrogatepass") for name in names}
    columns = [_require(dict, column) for group in groups for column in _require(list, group.get(1))]
    found = [_require(dict, column.get(3)) for column in columns]  # absent if the chunk is in another file
    return Footer(
        rows=sum(_require(int, group.get(3)) for group in groups),
        chunks=tuple(_chunk(column) for column in found if wanted.intersection(_path(column)[:1])),
    )


def _path(column: dict[int, Any]) -> list[bytes]:
    """The name of a column, followed by the names of its nested fields."""
    return [_require(bytes, name) for name in _require(list, column.get(3))]


def _chunk(column: dict[int, Any]) -> ColumnChunk:
    start, dictionary = _require(int, column.get(9)), column.get(11)
    if isinstance(dictionary, int) and 0 < dictionary < start:
        start = dictionary
    return ColumnChunk(start, _require(int, column.get(7)))


def page_bytes(file: IO[bytes], chunk: ColumnChunk) -> Iterator[int]:
    """The uncompressed size of every page of a column chunk."""
    at, end = chunk.start, chunk.start + chunk.size
    while 0 <= at < end:
        header, size = _page_header(file, at)
        unpacked, packed = _require(int, header.get(2)), _require(int, header.get(3))
        if unpacked < 0 or packed < 0:
            raise BrokenParquetError("a size below zero")
        yield unpacked
        at += size + packed


def _page_header(file: IO[bytes], at: int) -> tuple[dict[int, Any], int]:
    window = FIRST_WINDOW
    while True:
        file.seek(at)
        cursor = _Cursor(file.read(window))
        try:
            return cursor.struct(), cursor.at
        except BrokenParquetError:  # broken, or longer than the window
            if len(cursor.data) < window or window >= LARGEST_WINDOW:
                raise
            window *= 8


def _require(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise BrokenParquetError("a field is missing")
    return value


class _Cursor:
    """A read position in bytes of Thrift's compact protocol."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """The fields of a struct by their id."""
        found: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            field = field + step if step else self._integer()
            # a boolean field is encoded in its type
            found[field] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth + 1)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise BrokenParquetError("too deep")
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._byte()
        if kind in _INTEGERS:
            return self._integer()
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind == _STRUCT:
            return self.struct(depth)
        if kind in _LISTS:
            return self._list(depth)
        raise BrokenParquetError("an unknown kind of field")

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        if count > len(self.data) - self.at:  # each element takes at least a byte
            raise BrokenParquetError("a list beyond the end")
        return [self._value(head & 15, depth + 1) for _ in range(count)]

    def _byte(self) -> int:
        if self.at >= len(self.data):
            raise BrokenParquetError("cut off")
        self.at += 1
        return self.data[self.at - 1]

    def _bytes(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise BrokenParquetError("cut off")
        self.at += count
        return self.data[self.at - count : self.at]

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) >= 128:
            value, shift = value | (byte & 127) << shift, shift + 7
            if shift > 63:
                raise BrokenParquetError("a number without an end")
        return value | byte << shift

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
