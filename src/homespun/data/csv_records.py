"""CSV as records: separated by commas, semicolons, tabs or bars."""

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
_EXCEL = re.compile(r'"?sep=([^"\r\n])"?\s*')  # the line with which Excel says what separates the cells


def read_csv(
    stream: io.BufferedReader,
    faults: Faults,
    *,
    columns: Columns,
    delimiter: str | None,
    default: str,
    quotes: bool,
) -> Iterator[Record]:
    """Rows below a header line. `default` separates the cells unless `delimiter`, Excel's first line or the header
    line says otherwise."""
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
                if any(header.count(name) > 1 for name in columns.names):
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
            "If quotes are letters like others here: --data-set quotes=false."
        )


def _first_line(lines: Iterator[str], above: int) -> tuple[str, int]:
    """The next line that is not blank, and how many lines are above it."""
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
    """The delimiter with which the header line has the required columns. With none of them it has: then the one
    with which it has most cells, so that a message can name the columns there are."""
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
