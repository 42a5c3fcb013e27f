"""Reads JSON: one object per line, or an array of objects."""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Iterator
from typing import Any, NoReturn

from homespun.data.records import Faults, Number, Record
from homespun.data.text_decoding import ENCODING_HINT, LONGEST_LINE_BYTES, read_lines

CHUNK_BYTES = 2**18
EXPECTED = 'Expected {"user": ..., "text": ...}.'


def read_json(stream: io.BufferedReader, faults: Faults) -> Iterator[Record]:
    """The records of a JSON file. A file that starts with `[` is an array; any other has one object per line."""
    is_array = stream.peek(CHUNK_BYTES).lstrip().startswith(b"[")
    return _elements(stream, faults) if is_array else _lines(stream, faults)


def _lines(stream: io.BufferedReader, faults: Faults) -> Iterator[Record]:
    for number, line in read_lines(stream, faults):
        place = f"line {number}"
        try:
            values = _DECODER.decode(line.strip(" \t\r\n"))
        except (ValueError, RecursionError):
            faults.add(f"{place}: not JSON. Each line must be one JSON object.")
            continue
        if isinstance(values, dict):
            yield Record(place, values)
        else:
            faults.add(f"{place}: not a JSON object. {EXPECTED}")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)  # NaN and Infinity are not JSON


_DECODER = json.JSONDecoder(parse_int=Number, parse_float=Number, parse_constant=_refuse)


def _elements(stream: io.BufferedReader, faults: Faults) -> Iterator[Record]:
    """The elements of an array, one at a time. Buffers at most the limit of one element."""
    text, number = _Text(stream), 0
    try:
        text.take("[")
        while not (number == 0 and text.take("]")):
            number += 1
            values = text.element()
            if values is None:
                faults.add(f"element {number}: not a JSON object of less than {LONGEST_LINE_BYTES:,} bytes. {EXPECTED}")
                return
            yield Record(f"element {number}", values)
            if not text.take(","):
                break
        if number and not text.take("]"):
            faults.add(f"after element {number}: neither a comma nor the closing bracket. Write the file again.")
        elif text.sign():
            faults.add("data after the closing bracket. Write one array of objects, or one object per line.")
    except UnicodeDecodeError:
        faults.add(f"after element {number}: not UTF-8. {ENCODING_HINT}")


class _Text:
    """A buffer of decoded text with a read position."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self.stream, self.decoder = stream, codecs.getincrementaldecoder("utf-8")()
        self.rest, self.at, self.ended = "", 0, False

    def more(self) -> bool:
        """Read at least as much as is buffered. False at the end of the stream."""
        chunk = self.stream.read(max(CHUNK_BYTES, len(self.rest) - self.at))
        self.rest, self.at = self.rest[self.at :] + self.decoder.decode(chunk, final=not chunk), 0
        return bool(chunk)

    def sign(self) -> str:
        """The next character that is not white space; an empty string at the end."""
        while True:
            while self.at < len(self.rest):
                if self.rest[self.at] not in " \t\r\n":
                    return self.rest[self.at]
                self.at += 1
            if not self.more():
                return ""

    def take(self, sign: str) -> bool:
        found = self.sign() == sign
        self.at += found
        return found

    def element(self) -> dict[str, Any] | None:
        """The next object; None if it is not an object or too long."""
        while self.sign() == "{":
            try:
                values, self.at = _DECODER.raw_decode(self.rest, self.at)
                return values
            except RecursionError:
                return None
            except ValueError:  # not JSON, or incomplete so far
                if len(self.rest) - self.at > LONGEST_LINE_BYTES or not self.more():
                    return None
        return None
