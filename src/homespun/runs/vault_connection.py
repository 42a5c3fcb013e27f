"""An open vault file: transactions, checksummed values, and one writer at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Self

from homespun.core.errors import VaultError
from homespun.runs.vault_file import DAMAGED, FAILURES, LOCK_FILE, Head, digest, explain, put

KEYS_PER_QUERY = 500


class VaultConnection:
    """The connection to one vault file. `Vault` adds its contents."""

    def __init__(self, path: Path, *, db: sqlite3.Connection, lock: BinaryIO | None) -> None:
        self.path = path
        self.read_only = lock is None
        self._db = db
        self._lock = lock
        self._staged: dict[bytes, bytes] = {}  # rows
        self._staged_artefacts: dict[str, bytes] = {}
        self._seen = self._head()  # as this writer found or left it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Discard what is staged, close the file, then release the lock."""
        self._staged.clear()
        self._staged_artefacts.clear()
        self._db.close()
        if self._lock:
            self._lock.close()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads inside see the same commit, even if a writer commits meanwhile.

        For readers, and for a short time: meanwhile the writer's log grows, and its `forget` has to wait. The writer
        itself needs no snapshot, since no other process can commit.
        """
        if not self.read_only or self._db.in_transaction:
            yield
            return
        self._query("BEGIN")
        try:
            yield
        finally:
            self._db.rollback()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit what the block writes, completely or not at all. Raises if another process has written meanwhile."""
        if self.read_only:
            raise VaultError(f"{self.path}: opened read-only. Open it for writing to change it.")
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._require_only_writer()
            yield self._db
            found = self._head()
            head = replace(found, commits=found.commits + 1)
            put(self._db, key="head", value=head.to_json())
            self._db.execute("COMMIT")
            self._seen = head
        except FAILURES as error:
            raise explain(self.path, error) from error
        finally:
            with suppress(sqlite3.Error):  # report the first error
                self._db.rollback()  # does nothing after the commit

    def _require_only_writer(self) -> None:
        """Detects a second writer: the lock has no effect once its file was removed, since the next writer locks a new
        file."""
        if self._head() != self._seen:
            raise VaultError(
                f"{self.path}: another process has written to this run since it was opened here (was {LOCK_FILE} "
                "removed?), so nothing was written. Wait until it has ended, then run the same command again."
            )

    def _query(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(sql, parameters).fetchall()
        except FAILURES as error:
            raise explain(self.path, error) from error

    def _head(self) -> Head:
        with self._validated("head"):
            return Head.from_json(self._value("head"))

    def _value(self, key: str) -> bytes:
        rows = self._query("SELECT value, sha256 FROM run WHERE key = ?", (key,))
        if len(rows) != 1 or digest(key, rows[0][0]) != rows[0][1]:
            raise self._damaged(f"the run's {key} is missing or does not match its checksum")
        if not isinstance(rows[0][0], bytes):
            raise self._damaged(f"the run's {key} has the wrong type")
        return rows[0][0]

    @contextmanager
    def _validated(self, key: str) -> Iterator[None]:
        """Report an invalid value as damage. Checksums have no key, so a forged value can match."""
        try:
            yield
        except (TypeError, ValueError):
            raise self._damaged(f"the run's {key} is invalid") from None

    def _damaged(self, what: str) -> VaultError:
        return VaultError(f"{self.path}: {what}. {DAMAGED}")

    def _query_keys(self, sql: str, keys: Collection[bytes]) -> Iterator[tuple[Any, ...]]:
        """The rows of a query that ends in `IN`, queried for some keys at a time, in a fixed order."""
        ordered = sorted(keys)
        for start in range(0, len(ordered), KEYS_PER_QUERY):
            some = ordered[start : start + KEYS_PER_QUERY]
            yield from self._query(f"{sql} ({','.join('?' * len(some))})", some)
