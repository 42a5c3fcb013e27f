"""Two ways to make one input or output call go wrong.

`Preloaded` is the library of `faults.c`, which sits below Python and SQLite alike. Where there is no C compiler,
`Patched` stands in for it: it sees Python's own calls and SQLite's statements, but not the single writes and syncs
inside SQLite.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODES = ("count", "full", "error", "torn", "killed")  # as the library numbers them
STATEMENTS = ("BEGIN", "COMMIT", "INSERT OR REPLACE", "PRAGMA wal_checkpoint", "PRAGMA journal_mode")


class Preloaded:
    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._library.faults_arm.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_long)
        self._library.faults_counted.restype = ctypes.c_long

    def arm(self, folder: str, *, how: str, nth: int) -> None:
        self._library.faults_arm(os.fsencode(folder), MODES.index(how), nth)

    @property
    def counted(self) -> int:
        return self._library.faults_counted()


class Patched:
    def __init__(self) -> None:
        self.counted = 0

    def arm(self, folder: str, *, how: str, nth: int) -> None:
        def meet(what: str) -> None:
            self.counted += 1
            later = self.counted > nth and (how == "error" or what != "sqlite")  # what needs no room works
            if how == "count" or self.counted < nth or later:
                return
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)
            number = errno.EIO if how == "error" else errno.ENOSPC
            if what == "sqlite":
                raise sqlite3.OperationalError(os.strerror(number))
            raise OSError(number, os.strerror(number))

        def patch(name: str, path_of: Callable[[Any], str]) -> None:
            real = getattr(os, name)

            def patched(first: Any, *rest: Any, **options: Any) -> Any:
                if path_of(first).startswith(folder):
                    meet(name)
                return real(first, *rest, **options)

            setattr(os, name, patched)

        patch("fsync", lambda handle: os.readlink(f"/proc/self/fd/{handle}"))
        for name in ("replace", "rename", "unlink"):
            patch(name, os.fspath)

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
                if sql.startswith(STATEMENTS):
                    meet("sqlite")
                return super().execute(sql, *parameters)

        connect = sqlite3.connect
        sqlite3.connect = lambda *names, **options: connect(*names, **options, factory=Connection)


def left_behind(folder: Path) -> list[str]:
    """Files that only a process in the middle of something has."""
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".part") or ".new" in path.name)
