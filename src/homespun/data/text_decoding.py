"""Decodes text files of any encoding: as one text, as a UTF-8 stream, or line by line."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from typing import IO, Any

from homespun.core.errors import DataError, SettingsError
from homespun.data.records import Faults

LONGEST_LINE_BYTES = 10_000_000  # lines of this length or more are rejected
CHUNK_BYTES = 2**16
# Longer marks first: the mark of UTF-32 begins with that of UTF-16.
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
BYTE_ORDER_MARK = "\ufeff"
EXPORT_AS_CSV = "Export it: in Excel, File, Save As, 'CSV UTF-8 (Comma delimited)'"
SIGNATURES = {
    b"PK\x03\x04": f"a ZIP archive or an Excel workbook. {EXPORT_AS_CSV}, or unpack it.",
    b"\xd0\xcf\x11\xe0": f"an Excel workbook. {EXPORT_AS_CSV}.",
    b"PAR1": "a Parquet file. Rename it so that it ends in .parquet.",
    b"\x1f\x8b": "a gzip file. Rename it so that it ends in .gz.",
    b"BZh": "a bzip2 file. Unpack it, or compress it with gzip.",
    b"\xfd7zXZ": "an xz file. Unpack it, or compress it with gzip.",
    b"\x28\xb5\x2f\xfd": "a Zstandard file. Unpack it, or compress it with gzip.",
    b"%PDF": "a PDF file. Save its text as .txt.",
    b"SQLite format 3": "an SQLite database. Export the table as CSV.",
}
ENCODING_HINT = "Name its encoding, for example --data-set encoding=cp1252, or convert it to UTF-8."


class UndecodableLine(Exception):
    """A line is not in the given encoding."""

    def __init__(self, line: int, encoding: str) -> None:
        super().__init__(f"line {line}: not {encoding}. Name the right encoding, or convert the file to UTF-8.")


def require_encoding(name: str) -> str:
    """The canonical name of a text encoding that Python knows."""
    try:
        "a".encode(name)
    except (LookupError, ValueError):
        raise SettingsError(
            f"encoding: no encoding {name[:40]!r}. Use one that Python knows, like utf-8, utf-16, latin-1 or cp1252."
        ) from None
    return codecs.lookup(name).name


def to_utf8(stream: io.BufferedReader, *, where: str, encoding: str | None) -> io.BufferedReader:
    """The same text in UTF-8 without a byte order mark. The source's encoding is that of its byte order mark, else
    `encoding`, else UTF-8."""
    start = stream.peek(CHUNK_BYTES)[:CHUNK_BYTES]
    found = detect_encoding(start, where=where, encoding=encoding)
    if found != "utf-8":
        return io.BufferedReader(_Utf8Transcoder(stream, found), CHUNK_BYTES)
    if start.startswith(codecs.BOM_UTF8):
        stream.read(len(codecs.BOM_UTF8))
    return stream


def detect_encoding(start: bytes, *, where: str, encoding: str | None) -> str:
    """The encoding of a text with these first bytes. Raises, naming the format, if it is not text."""
    for signature, kind in SIGNATURES.items():
        if start.startswith(signature):
            raise DataError(f"{where}: this is {kind}")
    for mark, name in BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            return name
    if encoding is not None:
        return encoding
    if start.count(0) > len(start) // 4:  # in UTF-16, half of the bytes of most texts are zero
        raise DataError(
            f"{where}: not a text, or UTF-16 without a byte order mark. For UTF-16: --data-set encoding=utf-16-le."
        )
    return "utf-8"


def decode_text(content: bytes, *, where: str, encoding: str | None = None, remedy: str = ENCODING_HINT) -> str:
    """A whole text, without a byte order mark."""
    found = detect_encoding(content[:CHUNK_BYTES], where=where, encoding=encoding)
    try:
        text = content.decode(found).removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        line = content[: error.start].decode(found, "replace").count("\n") + 1
        raise DataError(f"{where}: line {line} is not {found.upper()}. {remedy}") from None
    if "\0" in text:
        raise DataError(f"{where}: a binary file, not a text. Save it as plain text in UTF-8.")
    return text


class _Utf8Transcoder(io.RawIOBase):
    """Transcodes a stream to UTF-8."""

    def __init__(self, stream: io.BufferedReader, encoding: str) -> None:
        self.stream, self.encoding = stream, encoding
        self.decoder = codecs.getincrementaldecoder(encoding)()
        self.ready, self.line, self.begun, self.ended = b"", 1, False, False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.ready and not self.ended:
            self._decode_more()
        count = min(len(buffer), len(self.ready))
        buffer[:count], self.ready = self.ready[:count], self.ready[count:]
        return count

    def _decode_more(self) -> None:
        chunk = self.stream.read1(CHUNK_BYTES)
        self.ended = not chunk
        try:
            text = self.decoder.decode(chunk, final=self.ended)
        except UnicodeDecodeError as error:
            before = error.object[: error.start].decode(self.encoding, "replace")
            raise UndecodableLine(self.line + before.count("\n"), self.encoding) from None
        if not self.begun:
            text, self.begun = text.removeprefix(BYTE_ORDER_MARK), bool(text)
        self.line += text.count("\n")
        self.ready = text.encode("utf-8", "surrogatepass")


def read_lines(stream: IO[bytes], faults: Faults, *, keep_all: bool = False) -> Iterator[tuple[int, str]]:
    """Lines of text with their numbers. Buffers at most `LONGEST_LINE_BYTES`.

    Blank and faulty lines are skipped. With `keep_all` they are yielded too, faulty ones as far as they can be
    decoded, for a reader that counts lines itself.
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
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            faults.add(f"line {number}: not UTF-8 (at byte {error.start + 1}). {ENCODING_HINT}")
            sound, text = False, line.decode("utf-8", "replace")
        if keep_all or (sound and text.strip()):
            yield number, text
