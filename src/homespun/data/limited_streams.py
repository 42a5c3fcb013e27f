"""A file's bytes, read once from start to end: hashed as they come, unpacked, and counted against a limit."""

from __future__ import annotations

import gzip
import hashlib
import io
from typing import IO, Any

from homespun.core.errors import DataError

# The usual limit. Text that people wrote packs to a third or a tenth; a hundred sentences said by all, to a seventieth.
RATIO = 250
AT_LEAST_BYTES = 256_000_000
AT_MOST_BYTES = 20_000_000_000
EXAMPLE_BYTES = 100  # counted for every example: about what its places in the tables take
CHUNK_BYTES = 2**17


class ByteLimit:
    """How many bytes a file may become in memory; `packed` is its size on disk."""

    def __init__(self, where: str, *, packed: int, max_bytes: int | None = None) -> None:
        self.where, self.packed = where, packed
        self.limit = max_bytes or min(AT_MOST_BYTES, max(AT_LEAST_BYTES, RATIO * packed))
        self.spent = 0

    def spend(self, count: int) -> None:
        self.spent += count
        if self.spent > self.limit:
            raise self.exceeded()

    def require(self, count: int) -> None:
        """Raise if this much more would be too much; it is not counted yet."""
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
    """A file that is read once and hashed on the way. What is appended after its end was seen is not read."""

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
        """Of the whole file."""
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
    """The content of a file, never more of it than is allowed."""
    stream: Any = gzip.GzipFile(fileobj=io.BufferedReader(hashed, CHUNK_BYTES)) if gzipped else hashed
    return io.BufferedReader(_Counted(stream, byte_limit), CHUNK_BYTES)
