"""An append-only file of JSON lines with a hash chain, locked by one process at a time and synced after each write.

Each line has a field `chain`, the SHA-256 of the previous line's hash and its own content, so that removed, changed and
moved lines are detected. In a file that an earlier version started, the first chained line covers all bytes before it.
Bytes after the last line break are an incomplete write and are ignored. The chain alone does not detect that the last
lines were cut off: to detect that, store `head` in another place.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from homespun.core.errors import HomespunError, SettingsError
from homespun.system.disk import open_file, sync

Entry: TypeAlias = dict[str, Any]
_DAMAGE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, SettingsError)


class LedgerError(HomespunError):
    """The ledger cannot be read or written, so no release is made."""


@dataclass(frozen=True)
class Lines:
    """Lines whose hash chain has been verified."""

    text: bytes = field(default=b"", repr=False)
    entries: tuple[Entry, ...] = ()
    links: tuple[str, ...] = ()  # hashes of the chained lines, which are the last ones

    @property
    def head(self) -> str:
        """The hash that the next line is chained to."""
        return self.links[-1] if self.links else hashlib.sha256(self.text).hexdigest()

    def with_new(self, entries: Sequence[Entry]) -> Lines:
        text, links, head = self.text, [*self.links], self.head
        for entry in entries:
            head = _link(head, entry)
            links.append(head)
            text += json.dumps({**entry, "chain": head}).encode() + b"\n"
        return Lines(text, (*self.entries, *entries), tuple(links))


def extend_lines(before: Lines, text: bytes, *, path: Path, check: Callable[[Entry], object]) -> Lines:
    """Read and verify the lines of a file after those read `before`. `check` raises if an entry is invalid."""
    if not text.startswith(before.text):
        raise LedgerError(f"{path}: lines were removed or changed while it was in use. Restore the file from a backup.")
    entries, links, place = [*before.entries], [*before.links], len(before.text)
    for line in text[place:].splitlines(keepends=True):
        number = len(entries) + 1
        try:
            entry = json.loads(line)
            check(entry)
        except _DAMAGE:
            raise LedgerError(
                f"{path}: line {number} cannot be read, and it may record a release. Nothing was changed. Restore the "
                "file from a backup."
            ) from None
        link = entry.pop("chain", None)
        if link is not None or links:
            head = links[-1] if links else hashlib.sha256(text[:place]).hexdigest()
            if link != _link(head, entry):
                raise LedgerError(
                    f"{path}: line {number} breaks the hash chain: a line was removed, changed or moved. Nothing was "
                    "changed. Restore the file from a backup."
                )
            links.append(link)
        entries.append(entry)
        place += len(line)
    return Lines(text, tuple(entries), tuple(links))


def _link(head: str, entry: Mapping[str, Any]) -> str:
    return hashlib.sha256(f"{head}\n{json.dumps(entry, sort_keys=True)}".encode()).hexdigest()


def read_complete_lines(path: Path) -> bytes:
    """All complete lines of a file; empty if the file does not exist."""
    try:
        return _whole(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error}), so no release is made.") from error


def _whole(text: bytes) -> bytes:
    return text[: text.rfind(b"\n") + 1]


@contextmanager
def open_for_append(path: Path) -> Iterator[tuple[bytes, Callable[[bytes], None]]]:
    """Lock a file, created if needed; give its complete lines and a function that replaces them by longer ones."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        with open_file(path, os.O_APPEND) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if new:
                sync(path.parent)
            file.seek(0)
            found = _whole(file.read())

            def write(longer: bytes) -> None:
                file.truncate(len(found))  # drop an incomplete last line
                file.write(longer[len(found) :])
                file.flush()
                os.fsync(file.fileno())

            yield found, write
    except OSError as error:
        raise LedgerError(
            f"{path}: cannot be written ({error}), so no release is made. Free disk space, or make the file and its "
            "folder writable."
        ) from error
