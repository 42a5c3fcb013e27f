"""A text file of JSON lines that only grows, for one process at a time; a line is on disk before its writer goes on.

Each line carries `chain`, the SHA-256 of the line before it and of its own content, so that a line that was removed,
changed or moved is noticed. The first chained line of a file that an earlier version began covers all bytes before it.
What stands after the last line break was never waited for and does not count. Lines that are cut off at the end leave a
whole chain: who wants to notice that keeps `head` elsewhere.
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
    """What was released cannot be read or written, so nothing more is released."""


@dataclass(frozen=True)
class Lines:
    """Lines that were read and found whole."""

    text: bytes = field(default=b"", repr=False)
    entries: tuple[Entry, ...] = ()
    links: tuple[str, ...] = ()  # of the chained lines, which are the last ones

    @property
    def head(self) -> str:
        """What the next line is chained to."""
        return self.links[-1] if self.links else hashlib.sha256(self.text).hexdigest()

    def with_new(self, entries: Sequence[Entry]) -> Lines:
        text, links, head = self.text, [*self.links], self.head
        for entry in entries:
            head = _link(head, entry)
            links.append(head)
            text += json.dumps({**entry, "chain": head}).encode() + b"\n"
        return Lines(text, (*self.entries, *entries), tuple(links))


def read_on(before: Lines, text: bytes, *, path: Path, check: Callable[[Entry], object]) -> Lines:
    """The lines of a file, of which some were read before; `check` raises where an entry makes no sense."""
    if not text.startswith(before.text):
        raise LedgerError(f"{path}: lines that were there before are gone or changed. Restore the file from a copy.")
    entries, links, place = [*before.entries], [*before.links], len(before.text)
    for line in text[place:].splitlines(keepends=True):
        number = len(entries) + 1
        try:
            entry = json.loads(line)
            check(entry)
        except _DAMAGE:
            raise LedgerError(
                f"{path}: line {number} cannot be read, and it may stand for something that was released. Nothing was "
                "changed. Restore the file from a copy."
            ) from None
        link = entry.pop("chain", None)
        if link is not None or links:
            head = links[-1] if links else hashlib.sha256(text[:place]).hexdigest()
            if link != _link(head, entry):
                raise LedgerError(
                    f"{path}: line {number} does not follow from the lines before it: a line was removed, changed or "
                    "moved. Nothing was changed. Restore the file from a copy."
                )
            links.append(link)
        entries.append(entry)
        place += len(line)
    return Lines(text, tuple(entries), tuple(links))


def _link(head: str, entry: Mapping[str, Any]) -> str:
    return hashlib.sha256(f"{head}\n{json.dumps(entry, sort_keys=True)}".encode()).hexdigest()


def whole_lines(path: Path) -> bytes:
    """All lines of a file, empty if there is no file."""
    try:
        return _whole(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error}). Nothing is released without it.") from error


def _whole(text: bytes) -> bytes:
    return text[: text.rfind(b"\n") + 1]


@contextmanager
def appending(path: Path) -> Iterator[tuple[bytes, Callable[[bytes], None]]]:
    """The lines of a file, which is made if need be, and a function that makes the file these longer lines."""
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
                file.truncate(len(found))  # what is left of a line that nobody waited for
                file.write(longer[len(found) :])
                file.flush()
                os.fsync(file.fileno())

            yield found, write
    except OSError as error:
        raise LedgerError(
            f"{path}: cannot be written ({error}), so nothing is released. Make room on the disk, or make the file and "
            "its folder writable."
        ) from error
