"""Reads a file once from start to end: hashes its bytes, decompresses them, and counts them against a limit."""

from __future__ import annotations

import gzip
import hashlib
import io
from typing import IO, Any

from homespun.core.errors import DataError

# The default limit. Ordinary text compresses to between a third and a tenth of its size; a corpus that repeats the same
# hundred sentences, to a seventieth.
RATIO = 250
AT_LEAST_BYTES = 256_000_000
AT_MOST_BYTES = 20_000_000_000
EXAMPLE_BYTES = 100  # counted per example: the approximate overhead of its table entries
CHUNK_BYTES = 2**17


class ByteLimit:
    """The number of bytes a file may take in memory. `packed` is its size on disk."""

    def __init__(self, where: str, *, packed: int, max_bytes: int | None = None) -> None:
        self.where, self.packed = where, packed
        self.limit = max_bytes or min(AT_MOST_BYTES, max(AT_LEAST_BYTES, RATIO * packed))
        self.spent = 0

    def spend(self, count: int) -> None:
        self.spent += count
        if self.spent > self.limit:
            raise self.exceeded()

    def require(self, count: int) -> None:
        """Raise if `count` more bytes would exceed the limit, without counting them."""
        if self.spent + count > self.limit:
            raise self.exceeded()

    def exceeded(self) -> DataError:
        return DataError(
            f"{self.where}: more than {_size(self.limit)} once unpacked, from a file of {_size(self.packed)}. "
            f"If you trust it, allow more: --data-set max_bytes={10 * self.limit}."
        )


def _size(count: int) -> str:
    """`461 bytes`, `1.3 MB`, `256 MB`."""
    if count < 10_000:
        return f"{count:,} bytes"
    megabytes = count / 1e6
    return f"{megabytes:,.0f} MB" if megabytes >= 10 or megabytes == round(megabytes) else f"{megabytes:,.2g} MB"


class HashedStream(io.RawIOBase):
    """Hashes a file while it is read. Bytes appended after the end was reached are not read."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.digest, self.ended = file, hashlib.sha256(), False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = 0 if self.ended else self.file.readinto(buffer)  # type: ignore[attr-defined]
        self.ended = not count
        self.digest.update(memoryview(buffer)[:count])
        return count

    def sha256(self) -> str:
        """The hash of the whole file. Reads it to its end."""
        while self.read(CHUNK_BYTES):
            pass
        return self.digest.hexdigest()


class _Counted(io.RawIOBase):
    def __init__(self, stream: Any, byte_limit: ByteLimit) -> None:
        self.stream, self.byte_limit = stream, byte_limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self.stream.readinto(buffer)
        self.byte_limit.spend(count)
        return count


def unpack(hashed: HashedStream, byte_limit: ByteLimit, *, gzipped: bool) -> io.BufferedReader:
    """The decompressed content of a file. Reading beyond the limit raises."""
    stream: Any = gzip.GzipFile(fileobj=io.BufferedReader(hashed, CHUNK_BYTES)) if gzipped else hashed
    return io.BufferedReader(_Counted(stream, byte_limit), CHUNK_BYTES)
