"""The vault's file: schema, creation, locking, opening and checks, and explanations of SQLite's errors.

`homespun.runs.vault` reads and writes the rows. `docs/vault.md` has the layout and the guarantees.
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
APPLICATION_ID = 0x486D7370  # "Hmsp": identifies the database, for instance to `file vault.sqlite`
BUSY_TIMEOUT_S = 10.0
MAX_INTEGER = 2**63 - 1  # of SQLite's integers

SCHEMA = (
    "CREATE TABLE run (key TEXT PRIMARY KEY, value BLOB NOT NULL, sha256 BLOB NOT NULL)",
    "CREATE TABLE history (id INTEGER PRIMARY KEY, record BLOB NOT NULL, sha256 BLOB NOT NULL)",
    "CREATE TABLE private (id INTEGER PRIMARY KEY, user BLOB NOT NULL UNIQUE, round INTEGER NOT NULL,"
    " sha256 BLOB NOT NULL, data BLOB NOT NULL)",
    # Lists the users that have a row, so that a damaged key or index is not mistaken for a new user.
    "CREATE TABLE known (user_sha256 BLOB PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE quarantine (id INTEGER PRIMARY KEY, user BLOB NOT NULL, round, reason, at, data)",
)

DAMAGED = "The file is damaged or not a vault; nothing was deleted. Restore it from a copy."
_NO_PERMISSION = "Check that the file and its folder are yours and writable."
_BUSY = "Another process is using it. Try again when that process has ended."
_REMEDIES = {
    sqlite3.SQLITE_FULL: "The last commit is intact. Make room on the disk, then run the same command again.",
    sqlite3.SQLITE_TOOBIG: "An entry can have at most 1 GB. The last commit is intact.",
    **dict.fromkeys((sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR), DAMAGED),
    **dict.fromkeys((sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY), _NO_PERMISSION),
    **dict.fromkeys((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED), _BUSY),
}
# The last two: raised by the sqlite3 module for a value over 2 GB, and for an error message that quotes damaged text.
FAILURES = (sqlite3.Error, OverflowError, UnicodeDecodeError)


@dataclass(frozen=True)
class Head:
    """The last commit: its round, the number of records, and the checksum of its server state."""

    round: int
    records: int
    state_sha256: str | None
    commits: int = 0  # of any kind: a writer that finds another number is not the only one

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Head:
        """Raises ValueError if the text is not a head."""
        head = cls(**read_object(text))
        counts = (head.round, head.records, head.commits)
        if any(type(count) is not int or not 0 <= count <= MAX_INTEGER for count in counts):
            raise ValueError("not a count")
        if not isinstance(head.state_sha256, str | None):
            raise ValueError("not a checksum")
        return head


def read_object(text: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError for anything else."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def files_of(path: Path) -> list[Path]:
    """The vault and SQLite's files beside it."""
    return [path.with_name(path.name + end) for end in ("", "-wal", "-shm", "-journal")]


def reject_links(path: Path) -> None:
    """Raise if one of the files is a symbolic link: SQLite opens files by name, also for readers, and follows links."""
    for file in files_of(path):
        refuse_link(file)


def restrict_permissions(path: Path) -> None:
    """Make the files private to their owner: a copied or unpacked vault may be readable by others."""
    for file in files_of(path):
        with suppress(FileNotFoundError):
            file.chmod(0o600)


def take_lock(folder: Path) -> BinaryIO:
    """Take the run's lock, held while the returned file is open: the kernel releases it even after a kill -9.

    The descriptor is close-on-exec, so that a worker process started meanwhile does not inherit it.
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
    """Create the file under another name, then rename it, so that an incomplete file never has the vault's name."""
    log = path.with_name(path.name + "-wal")
    if log.exists():  # it belongs to the missing file, but SQLite would replay it into a new one
        raise VaultError(f"{path}: missing, but its log {log.name} exists. Restore the file, or move the log away.")
    new = path.with_name(path.name + ".new")
    _remove_half_made(new)
    try:
        # SQLite gives its -wal and -shm files the mode of the database, so none is ever readable by others.
        open_file(new, os.O_EXCL, mode=0o600).close()
        with closing(connect(new, read_only=False)) as db:
            _write_schema(db, identity, token=f"{path.parent.resolve()} {secrets.token_hex(8)}")
        os.replace(new, path)
    except sqlite3.Error as error:
        raise explain(path, error) from error
    finally:
        with suppress(OSError):
            _remove_half_made(new)  # all files, or those that SQLite could not remove when it closed the database
    sync(path.parent)


def _write_schema(db: sqlite3.Connection, identity: str, *, token: str) -> None:
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
    # Until now everything is in the log, which the rename would leave behind. Closing would also move it to the file,
    # but would not report a full disk.
    [(busy, _, _)] = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    if busy:
        raise sqlite3.OperationalError("a new vault is in use by another process")


def _remove_half_made(new: Path) -> None:
    for file in files_of(new):
        file.unlink(missing_ok=True)


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    mode = "ro" if read_only else "rw"
    if read_only and not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists():
        mode = "ro&immutable=1"  # on a read-only disk SQLite cannot create the files that readers share
    try:
        uri = f"{path.absolute().as_uri()}?mode={mode}"
        db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S)
    except sqlite3.Error as error:
        raise explain(path, error) from error
    db.text_factory = bytes  # so that damaged text fails its checksum instead of its decoding
    return db


def check_file(db: sqlite3.Connection, path: Path, *, read_only: bool) -> None:
    """Raise unless this is a vault that this version can read, and set the pragmas that SQLite does not store.

    Any difference from the schema is rejected. This includes views, triggers and columns that would run functions; none
    of them runs before the check.
    """

    def query(sql: str) -> list[tuple[Any, ...]]:
        try:
            return db.execute(sql).fetchall()
        except FAILURES as error:
            raise explain(path, error) from error

    for setting in ("synchronous=FULL", "secure_delete=ON", "cell_size_check=ON", "trusted_schema=OFF"):
        query(f"PRAGMA {setting}")
    if query("PRAGMA application_id") != [(APPLICATION_ID,)]:
        raise VaultError(f"{path}: {DAMAGED}")
    [(version,)] = query("PRAGMA user_version")
    if version != SCHEMA_VERSION:
        raise VaultError(
            f"{path}: has schema {version}, but this homespun reads schema {SCHEMA_VERSION}. "
            "Upgrade homespun, or use the version that wrote it."
        )
    if sorted(query(_SCHEMA_QUERY), key=repr) != _expected_schema():
        raise VaultError(f"{path}: its schema is not that of a vault. {DAMAGED}")
    if not read_only:
        query("PRAGMA journal_mode=WAL")


_SCHEMA_QUERY = "SELECT type, name, tbl_name, sql FROM sqlite_master"


@cache
def _expected_schema() -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.text_factory = bytes
        for statement in SCHEMA:
            db.execute(statement)
        return sorted(db.execute(_SCHEMA_QUERY).fetchall(), key=repr)


def explain(path: Path, error: Exception) -> VaultError:
    """An error with SQLite's message and a remedy."""
    codes = {OverflowError: sqlite3.SQLITE_TOOBIG, UnicodeDecodeError: sqlite3.SQLITE_CORRUPT}
    code = getattr(error, "sqlite_errorcode", codes.get(type(error), -1))
    remedy = _REMEDIES.get(code & 0xFF, "The last commit is intact.")  # the low byte is the kind of error
    return VaultError(f"{path}: {error}. {remedy}")


def put(db: sqlite3.Connection, *, key: str, value: bytes) -> None:
    db.execute("INSERT OR REPLACE INTO run VALUES (?, ?, ?)", (key, value, digest(key, value)))


def digest(*parts: object) -> bytes:
    """SHA-256 of the parts and their lengths. Parts may have any type, since a damaged file may return any."""
    found = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        found.update(len(data).to_bytes(8, "big"))
        found.update(data)
    return found.digest()
