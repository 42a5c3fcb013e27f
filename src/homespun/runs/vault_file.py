"""The vault as a file: its schema, how it is made, locked, opened and checked, and what SQLite's errors mean.

`homespun.runs.vault` reads and writes the rows. `docs/vault.md` has the layout and the promises.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import sqlite3
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from homespun.core.errors import RunError, VaultError
from homespun.system.disk import open_file, refuse_link, sync

VAULT_FILE = "vault.sqlite"
LOCK_FILE = "vault.lock"
SCHEMA_VERSION = 1
APPLICATION_ID = 0x486D7370  # "Hmsp": `file vault.sqlite` shows whose database it is
BUSY_TIMEOUT_S = 10.0
LARGEST = 2**63 - 1  # of SQLite's integers

SCHEMA = (
    "CREATE TABLE run (key TEXT PRIMARY KEY, value BLOB NOT NULL, sha256 BLOB NOT NULL)",
    "CREATE TABLE history (id INTEGER PRIMARY KEY, record BLOB NOT NULL, sha256 BLOB NOT NULL)",
    "CREATE TABLE private (id INTEGER PRIMARY KEY, user BLOB NOT NULL UNIQUE, round INTEGER NOT NULL,"
    " sha256 BLOB NOT NULL, data BLOB NOT NULL)",
    # Who has a row, apart from the rows: a damaged key or index cannot pass for a user never seen.
    "CREATE TABLE known (user_sha256 BLOB PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE quarantine (id INTEGER PRIMARY KEY, user BLOB NOT NULL, round, reason, at, data)",
)

DAMAGED = "The file is damaged or not a vault; nothing was deleted. Restore it from a copy."
_NOT_YOURS = "Check that the file and its folder are yours and writable."
_BUSY = "Another process is busy with it. Try again when it has ended."
_REMEDIES = {
    sqlite3.SQLITE_FULL: "The last commit is intact. Make room on the disk, then run the same command again.",
    sqlite3.SQLITE_TOOBIG: "One entry may have 1 GB at most; the last commit is intact.",
    **dict.fromkeys((sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR), DAMAGED),
    **dict.fromkeys((sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY), _NOT_YOURS),
    **dict.fromkeys((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED), _BUSY),
}
# The last two: what the sqlite3 module makes of a value over 2 GB, and of an error message quoting damage.
FAILURES = (sqlite3.Error, OverflowError, UnicodeDecodeError)


@dataclass(frozen=True)
class Head:
    """What the last commit left: its round, how many records there are, and which server state belongs to it."""

    round: int
    records: int
    state_sha256: str | None
    commits: int = 0  # of whatever kind: a writer that finds another number is not the only one

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Head:
        """Raise a ValueError for anything but a head."""
        head = cls(**read_object(text))
        counts = (head.round, head.records, head.commits)
        if any(type(count) is not int or not 0 <= count <= LARGEST for count in counts):
            raise ValueError("not a count")
        if not isinstance(head.state_sha256, str | None):
            raise ValueError("not a checksum")
        return head


def read_object(text: bytes) -> dict[str, Any]:
    """A JSON object; a ValueError for anything else."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def files_of(path: Path) -> list[Path]:
    """The vault and the files that SQLite keeps beside it."""
    return [path.with_name(path.name + end) for end in ("", "-wal", "-shm", "-journal")]


def refuse_links(path: Path) -> None:
    """SQLite opens its files by name, for readers too, and follows symbolic links."""
    for file in files_of(path):
        refuse_link(file)


def close_to_others(path: Path) -> None:
    """A copied or unpacked vault may arrive readable by others."""
    for file in files_of(path):
        with suppress(FileNotFoundError):
            file.chmod(0o600)


def take_lock(folder: Path) -> BinaryIO:
    """The run's lock, held while the returned file is open: the kernel frees it even after a kill -9.

    The descriptor is close-on-exec, so that a worker process started meanwhile cannot keep it.
    """
    file = open_file(folder / LOCK_FILE, mode=0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate(0)
        file.write(f"{os.getpid()}\n".encode())
        file.flush()
    except BlockingIOError:
        with file:
            holder = file.read(20).decode(errors="replace").strip()
        who = f"process {holder}" if holder.isdigit() else "another process"
        raise RunError(f"{folder}: in use by {who}. Wait until it ends, or stop it.") from None
    except BaseException:
        with suppress(OSError):
            file.close()
        raise
    return file


def create(path: Path, identity: str) -> None:
    """Make the file under another name, then rename it: what bears the name is never half made."""
    log = path.with_name(path.name + "-wal")
    if log.exists():  # SQLite would replay it, though it belongs to the missing file, into a new one
        raise VaultError(f"{path}: missing, but its log {log.name} is there. Restore it, or move the log.")
    new = path.with_name(path.name + ".new")
    _remove_half_made(new)
    try:
        # SQLite gives its -wal and -shm files the mode of the database, so none is ever readable by others.
        open_file(new, os.O_EXCL, mode=0o600).close()
        with closing(connect(new, read_only=False)) as db:
            _fill(db, identity, token=f"{path.parent.resolve()} {secrets.token_hex(8)}")
        os.replace(new, path)
    except sqlite3.Error as error:
        raise explained(path, error) from error
    finally:
        with suppress(OSError):
            _remove_half_made(new)  # all of it, or what SQLite could not remove when it closed the file
    sync(path.parent)


def _fill(db: sqlite3.Connection, identity: str, *, token: str) -> None:
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("BEGIN")
    for statement in SCHEMA:
        db.execute(statement)
    head = Head(round=0, records=0, state_sha256=None)
    for key, value in {"identity": identity.encode(), "token": token.encode(), "head": head.to_json()}.items():
        put(db, key=key, value=value)
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")
    db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    db.execute("COMMIT")
    # All of it is in the log until now, which the rename would leave behind. Closing would move it to the file as well,
    # but a full disk then goes unreported.
    [(busy, _, _)] = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    if busy:
        raise sqlite3.OperationalError("a new vault is in use by another process")


def _remove_half_made(new: Path) -> None:
    for file in files_of(new):
        file.unlink(missing_ok=True)


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    mode = "ro" if read_only else "rw"
    if read_only and not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists():
        mode = "ro&immutable=1"  # on a read-only disk SQLite cannot make the files that readers share
    try:
        uri = f"{path.absolute().as_uri()}?mode={mode}"
        db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S)
    except sqlite3.Error as error:
        raise explained(path, error) from error
    db.text_factory = bytes  # a damaged text is then a failed checksum, not a decoding error
    return db


def check_file(db: sqlite3.Connection, path: Path, *, read_only: bool) -> None:
    """Raise unless this is a vault that this version can read; then set what SQLite forgets at close.

    Views, triggers and columns that run functions are refused with everything else that differs from the schema, and
    nothing of them has run by then.
    """

    def ask(sql: str) -> list[tuple[Any, ...]]:
        try:
            return db.execute(sql).fetchall()
        except FAILURES as error:
            raise explained(path, error) from error

    for setting in ("synchronous=FULL", "secure_delete=ON", "cell_size_check=ON", "trusted_schema=OFF"):
        ask(f"PRAGMA {setting}")
    if ask("PRAGMA application_id") != [(APPLICATION_ID,)]:
        raise VaultError(f"{path}: {DAMAGED}")
    [(version,)] = ask("PRAGMA user_version")
    if version != SCHEMA_VERSION:
        raise VaultError(
            f"{path}: has schema {version}, but this homespun reads schema {SCHEMA_VERSION}. "
            "Upgrade homespun, or use the version that wrote it."
        )
    if sorted(ask(_LISTED), key=repr) != _expected_schema():
        raise VaultError(f"{path}: its schema is not that of a vault. {DAMAGED}")
    if not read_only:
        ask("PRAGMA journal_mode=WAL")


_LISTED = "SELECT type, name, tbl_name, sql FROM sqlite_master"


@cache
def _expected_schema() -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.text_factory = bytes
        for statement in SCHEMA:
            db.execute(statement)
        return sorted(db.execute(_LISTED).fetchall(), key=repr)


def explained(path: Path, error: Exception) -> VaultError:
    """What SQLite said, and what to do about it."""
    instead = {OverflowError: sqlite3.SQLITE_TOOBIG, UnicodeDecodeError: sqlite3.SQLITE_CORRUPT}
    code = getattr(error, "sqlite_errorcode", instead.get(type(error), -1))
    remedy = _REMEDIES.get(code & 0xFF, "The last commit is intact.")  # the low byte is the kind of error
    return VaultError(f"{path}: {error}. {remedy}")


def put(db: sqlite3.Connection, *, key: str, value: bytes) -> None:
    db.execute("INSERT OR REPLACE INTO run VALUES (?, ?, ?)", (key, value, digest(key, value)))


def digest(*parts: object) -> bytes:
    """sha256 of the parts and of where each ends; whatever a damaged file gives back can be digested."""
    found = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        found.update(len(data).to_bytes(8, "big"))
        found.update(data)
    return found.digest()
