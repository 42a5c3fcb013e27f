"""Reads CSV: cells separated by commas, semicolons, tabs or vertical bars."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

from homespun.data.columns import Columns
from homespun.data.records import Faults, Record
from homespun.data.text_decoding import read_lines

DELIMITERS = (",", ";", "\t", "|")
_EXCEL = re.compile(r'"?sep=([^"\r\n])"?\s*')  # Excel's first line, which names the delimiter


def read_csv(
    stream: io.BufferedReader,
    faults: Faults,
    *,
    columns: Columns,
    delimiter: str | None,
    default: str,
    quotes: bool,
) -> Iterator[Record]:
    """The rows below the header line.

    The delimiter is `delimiter`, else the one in Excel's first line, else the one detected in the header line;
    detection tries `default` first.
    """
    lines = (line for _, line in read_lines(stream, faults, keep_all=True))
    first, above = _first_line(lines, 0)
    if excel := _EXCEL.fullmatch(first):
        delimiter = delimiter or excel[1]
        first, above = _first_line(lines, above + 1)
    form = _form(delimiter or detect_delimiter(first, columns, default=default, quotes=quotes), quotes)
    reader = csv.reader(chain([first], lines), **form)
    header: list[str] = []
    try:
        for cells in reader:
            place = f"line {above + reader.line_num}"
            if not cells:
                continue
            if not header:
                header = cells
                if any(header.count(name) > 1 for name in columns.chosen):
                    faults.add(f"{place}: a column name occurs twice in the header.")
                continue
            if len(cells) != len(header):
                faults.add(f"{place}: {len(cells)} cells where the header has {len(header)}.")
                continue
            yield Record(place, dict(zip(header, cells, strict=True)))
    except csv.Error:
        limit = csv.field_size_limit()
        faults.add(
            f"line {above + reader.line_num}: not CSV (a stray or unclosed quote, or a cell over {limit} characters). "
            "If quotes are ordinary characters in this file: --data-set quotes=false."
        )


def _first_line(lines: Iterator[str], above: int) -> tuple[str, int]:
    """The next non-blank line, and the number of lines above it."""
    for line in lines:
        if line.strip():
            return line, above
        above += 1
    return "", above


def _form(delimiter: str, quotes: bool) -> dict[str, Any]:
    # strict: an unclosed quote is an error, not a field that swallows the rest of the file
    quoting = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
    return {"delimiter": delimiter, "quoting": quoting, "strict": True}


def detect_delimiter(header: str, columns: Columns, *, default: str, quotes: bool) -> str:
    """The delimiter that splits the header line into cells with the required columns.

    If none does, the delimiter that gives the most cells, so that an error can list the columns.
    """
    cells = {sign: _cells(header, sign, quotes) for sign in dict.fromkeys((default, *DELIMITERS))}
    for sign, names in cells.items():
        if set(columns.required) <= set(names):
            return sign
    return max(cells, key=lambda sign: len(cells[sign]))


def _cells(line: str, delimiter: str, quotes: bool) -> list[str]:
    try:
        return next(csv.reader([line], **_form(delimiter, quotes)), [])
    except csv.Error:
        return []
