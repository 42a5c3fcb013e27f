"""Private state, kept at home: one SQLite file in a run's folder.

The vault holds what makes each user different, together with the server's state and the history of the
rounds, so that all of a round is on disk or none of it. Rows are staged in memory and written by `commit`
in one transaction. Every stored value has a checksum, and a second list says who has a row: a damaged entry
is reported and set aside, never silently begun again. `docs/vault.md` has the layout and the promises.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Self

from torch import Tensor

from homespun.core.errors import RunError, UnknownNameError, VaultError, raise_faults
from homespun.core.identity import require_same_run
from homespun.core.tree import Tree, from_bytes, to_bytes

VAULT_FILE = "vault.sqlite"
LOCK_FILE = "vault.lock"
SCHEMA_VERSION = 1
APPLICATION_ID = 0x486D7370  # "Hmsp": `file vault.sqlite` shows whose database it is
BUSY_TIMEOUT_S = 10.0
USERS_PER_QUERY = 500

SCHEMA = (
    "CREATE TABLE run (key TEXT PRIMARY KEY, value BLOB NOT NULL, sha256 BLOB NOT NULL)",
    "CREATE TABLE history (id INTEGER PRIMARY KEY, record BLOB NOT NULL, sha256 BLOB NOT NULL)",
    "CREATE TABLE private (id INTEGER PRIMARY KEY, user BLOB NOT NULL UNIQUE, round INTEGER NOT NULL,"
    " sha256 BLOB NOT NULL, data BLOB NOT NULL)",
    # Who has a row, apart from the rows: a damaged key or index cannot pass for a user never seen.
    "CREATE TABLE known (user_sha256 BLOB PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE quarantine (id INTEGER PRIMARY KEY, user BLOB NOT NULL, round, reason, at, data)",
)

_DAMAGED = "The file is damaged or not a vault; nothing was deleted. Restore it from a copy."
_NOT_YOURS = "Check that the file and its folder are yours and writable."
_BUSY = "Another process is busy with it. Try again when it has ended."
_REMEDIES = {
    sqlite3.SQLITE_FULL: "The last commit is intact. Make room on the disk, then go on.",
    sqlite3.SQLITE_TOOBIG: "One entry may have 1 GB at most; the last commit is intact.",
    **dict.fromkeys((sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR), _DAMAGED),
    **dict.fromkeys((sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY), _NOT_YOURS),
    **dict.fromkeys((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED), _BUSY),
}
# The last two: what the sqlite3 module makes of a value over 2 GB, and of an error message quoting damage.
_FAILURES = (sqlite3.Error, OverflowError, UnicodeDecodeError)


@dataclass(frozen=True)
class Entry:
    """One committed private row, without its content."""

    user: str
    round: int
    size_bytes: int


@dataclass(frozen=True)
class Quarantined:
    """A private row that failed its checksum, as it was found."""

    user: str
    round: int
    reason: str
    at: str
    data: bytes


class Vault:
    """The private rows, server state and history of one run. Build it with `Vault.open`."""

    def __init__(self, path: Path, *, db: sqlite3.Connection, lock: BinaryIO | None) -> None:
        self.path = path
        self.read_only = lock is None
        self._db = db
        self._lock = lock
        self._staged: dict[bytes, bytes] = {}

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        identity: Mapping[str, Any] | None = None,
        read_only: bool = False,
        max_pages: int | None = None,
    ) -> Self:
        """The vault of the run in `folder`; with an identity, created if there is none.

        A different identity is refused with the difference. A writer holds the run's lock until `close` or
        its death; a reader takes no lock. `max_pages` caps the file, as a disk of that size would.
        """
        path, text = Path(folder) / VAULT_FILE, json.dumps(identity)
        with ExitStack() as undo:
            try:
                if not path.exists() and (identity is None or read_only):
                    raise RunError(f"{folder}: no run here (no {VAULT_FILE}). Check the name, or train.")
                lock = None
                if not read_only:
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    lock = undo.enter_context(_take_lock(path.parent))
                    if not path.exists():
                        _create(path, text)
                    for file in path.parent.glob(VAULT_FILE + "*"):
                        file.chmod(0o600)  # a copied or unpacked vault may arrive readable by others
                db = undo.enter_context(closing(_connect(path, read_only=read_only)))
            except OSError as error:
                raise RunError(
                    f"{folder}: cannot be used as a run folder ({error}). "
                    "Name a folder that you own and may write to, on a disk with room."
                ) from error
            vault = cls(path, db=db, lock=lock)
            vault._check_file()
            kept = vault.identity  # read in any case: a damaged one is found here
            require_same_run(path.parent, kept=kept, asked=kept if identity is None else identity)
            if max_pages is not None:
                vault._query(f"PRAGMA max_page_count={int(max_pages)}")
            undo.pop_all()
        return vault

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop what is staged, close the file, then let the next writer in."""
        self._staged.clear()
        self._db.close()
        if self._lock:
            self._lock.close()

    def remove(self) -> None:
        """The file of a run that never began."""
        for file in self.path.parent.glob(VAULT_FILE + "*"):
            file.unlink()
        self.close()

    # ---- the run ----

    @property
    def identity(self) -> dict[str, Any]:
        return json.loads(self._value("identity"))

    @cached_property
    def token(self) -> str:
        """Which run this is, for whoever keeps books elsewhere: another one in the same folder has another."""
        known = self._query("SELECT 1 FROM run WHERE key = 'token'")
        return self._value("token").decode() if known else str(self.path.parent)

    @property
    def round(self) -> int:
        """The last committed round; 0 before the first."""
        return self._head()["round"]

    @property
    def state(self) -> bytes | None:
        """The server's state as of `round`, or None when none was ever committed."""
        with self.snapshot():
            expected = self._head()["state_sha256"]
            state = None if expected is None else self._value("state")
        if state is not None and _digest("state", state).hex() != expected:
            raise self._damaged("the server's state is not the one of the last round")
        return state

    def history(self) -> list[dict[str, Any]]:
        """Every committed record, in order."""
        with self.snapshot():
            count = self._head()["records"]
            rows = self._query("SELECT id, record, sha256 FROM history ORDER BY id")
        if len(rows) != count or any(_digest(id, record) != sha for id, record, sha in rows):
            raise self._damaged("the history of rounds does not match its checksums")
        return [json.loads(record) for _, record, _ in rows]

    # ---- private rows ----

    def private(self, user: str) -> dict[str, Tensor] | None:
        """A user's private tensors, staged or else committed; None for a user never seen."""
        return self.private_many([user]).get(user)

    def private_many(self, users: Iterable[str]) -> dict[str, dict[str, Tensor]]:
        """The private tensors of those users who have any, in the order asked."""
        return {user: from_bytes(data) for user, data in self._rows(users).items()}

    def stage(self, private: Mapping[str, Tree]) -> None:
        """Keep these users' tensors, as they are now, in memory for the next `commit`."""
        rows = {_key(user): to_bytes(tree) for user, tree in private.items()}
        self._refuse_quarantined(rows)
        self._staged.update(rows)

    def commit(self, *, round: int, state: bytes | None = None, records: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write the staged rows, the state and the records up to `round` in one transaction.

        Without a state, the server's state stays as it was. When this fails the last commit is intact and
        the rows stay staged, so that a later call may succeed.
        """
        lines = [json.dumps(record).encode() for record in records]
        with self._transaction() as db:
            head = self._head()
            if round < head["round"]:
                raise VaultError(f"{self.path}: round {round} is over; round {head['round']} is committed.")
            db.executemany(
                "INSERT INTO private (user, round, sha256, data) VALUES (?, ?, ?, ?) ON CONFLICT (user)"
                " DO UPDATE SET round = excluded.round, sha256 = excluded.sha256, data = excluded.data",
                ((key, round, _digest(key, round, data), data) for key, data in self._staged.items()),
            )
            known = ((_digest(key),) for key in self._staged)
            db.executemany("INSERT OR IGNORE INTO known VALUES (?)", known)
            numbered = enumerate(lines, start=head["records"] + 1)
            history = ((n, line, _digest(n, line)) for n, line in numbered)
            db.executemany("INSERT INTO history VALUES (?, ?, ?)", history)
            if state is not None:
                _put(db, key="state", value=state)
                head["state_sha256"] = _digest("state", state).hex()
            head |= {"round": round, "records": head["records"] + len(lines)}
            _put(db, key="head", value=json.dumps(head).encode())
        self._staged.clear()

    # ---- for the person whose data it is ----

    @property
    def count(self) -> int:
        """How many users have a committed row."""
        return self._query("SELECT count(*) FROM private")[0][0]

    def entries(self, *, offset: int = 0, limit: int | None = None) -> list[Entry]:
        """The committed rows, ordered by the bytes of the user's id."""
        sql = "SELECT user, round, length(data) FROM private ORDER BY user LIMIT ? OFFSET ?"
        rows = self._query(sql, (-1 if limit is None else limit, offset))
        return [Entry(user=_user(key), round=round, size_bytes=size) for key, round, size in rows]

    def users(self, *, offset: int = 0, limit: int | None = None) -> list[str]:
        return [entry.user for entry in self.entries(offset=offset, limit=limit)]

    def export(self, user: str) -> bytes:
        """A user's private tensors as a safetensors file."""
        rows = self._rows([user])
        if user not in rows:
            remedy = "`homespun vault list RUN` shows who has one."
            raise UnknownNameError(f"{self.path}: no private entry of user {_quoted(user)}. {remedy}")
        return rows[user]

    def quarantined(self) -> list[Quarantined]:
        """The entries set aside because they failed their checksum, oldest first."""
        rows = self._query("SELECT user, round, reason, at, data FROM quarantine ORDER BY id")
        return [Quarantined(_user(row[0]), row[1], row[2].decode(), row[3].decode(), row[4]) for row in rows]

    def forget(self, user: str) -> bool:
        """Remove all that is kept of a user from the vault's files; False if there was nothing.

        Costs a rewrite of the file: `secure_delete` zeroes a deleted row, but page splits have left stale
        copies in unused space, and only a rewrite drops those. An interrupted call may be repeated.
        """
        key = _key(user)
        found = self._staged.pop(key, None) is not None
        with self._transaction() as db:
            for table in ("private", "quarantine"):
                found |= db.execute(f"DELETE FROM {table} WHERE user = ?", (key,)).rowcount > 0
            found |= db.execute("DELETE FROM known WHERE user_sha256 = ?", (_digest(key),)).rowcount > 0
        removed = f"{_quoted(user)} is removed, but traces may remain in the files: forget again after that."
        try:
            self._query("VACUUM")
            [(busy, _, _)] = self._query("PRAGMA wal_checkpoint(TRUNCATE)")
        except VaultError as error:
            raise VaultError(f"{error} {removed}") from error
        if busy:
            raise VaultError(f"{self.path}: another process reads this run; let it end. {removed}")
        return found

    # ---- consistency and errors ----

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Reads inside see one and the same commit, whatever a writer does meanwhile.

        Meant for readers, and for a short while: the writer's log grows, and its `forget` has to wait. The
        writer itself needs none, since nobody else can commit.
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
        if self.read_only:
            raise VaultError(f"{self.path}: opened read-only. Open it for writing to change it.")
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db
            self._db.execute("COMMIT")
        except _FAILURES as error:
            raise _explained(self.path, error) from error
        finally:
            self._db.rollback()  # does nothing after the commit

    def _query(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(sql, parameters).fetchall()
        except _FAILURES as error:
            raise _explained(self.path, error) from error

    def _check_file(self) -> None:
        """Raise unless this is a vault that this version can read; then set what SQLite forgets at close."""
        if self._query("PRAGMA application_id") != [(APPLICATION_ID,)]:
            raise VaultError(f"{self.path}: {_DAMAGED}")
        [(version,)] = self._query("PRAGMA user_version")
        if version != SCHEMA_VERSION:
            raise VaultError(
                f"{self.path}: has schema {version}, but this homespun reads schema {SCHEMA_VERSION}. "
                "Upgrade homespun, or use the version that wrote it."
            )
        for setting in ("synchronous=FULL", "secure_delete=ON", "cell_size_check=ON", "trusted_schema=OFF"):
            self._query(f"PRAGMA {setting}")
        if not self.read_only:
            self._query("PRAGMA journal_mode=WAL")

    def _head(self) -> dict[str, Any]:
        return json.loads(self._value("head"))

    def _value(self, key: str) -> bytes:
        rows = self._query("SELECT value, sha256 FROM run WHERE key = ?", (key,))
        if len(rows) != 1 or _digest(key, rows[0][0]) != rows[0][1]:
            raise self._damaged(f"the run's {key} is missing or does not match its checksum")
        return rows[0][0]

    def _damaged(self, what: str) -> VaultError:
        return VaultError(f"{self.path}: {what}. {_DAMAGED}")

    def _rows(self, users: Iterable[str]) -> dict[str, bytes]:
        """Verified bytes of those users who have any; all damaged entries among them in one error."""
        keys = {_key(user): user for user in users}
        found = {key: self._staged[key] for key in keys if key in self._staged}
        damaged: list[bytes] = []
        with self.snapshot():
            self._refuse_quarantined(keys)
            sql = "SELECT user, round, sha256, data FROM private WHERE user IN"
            for key, round, sha, data in self._among(sql, keys.keys() - found.keys()):
                if _digest(key, round, data) == sha:
                    found[key] = data
                else:
                    damaged.append(key)
            digests = {_digest(key): key for key in keys.keys() - found.keys() - set(damaged)}
            seen = self._among("SELECT user_sha256 FROM known WHERE user_sha256 IN", digests)
            lost = [digests[digest] for (digest,) in seen]
        if damaged and not self.read_only:
            self._set_aside(damaged)
        if damaged or lost:
            self._raise_unusable({"does not match its checksum": damaged, "can no longer be found": lost})
        return {user: found[key] for key, user in keys.items() if key in found}

    def _among(self, sql: str, keys: Collection[bytes]) -> Iterator[tuple[Any, ...]]:
        """The rows of a query that ends in `IN`, asked for some keys at a time, in a fixed order."""
        ordered = sorted(keys)
        for start in range(0, len(ordered), USERS_PER_QUERY):
            some = ordered[start : start + USERS_PER_QUERY]
            yield from self._query(f"{sql} ({','.join('?' * len(some))})", some)

    def _set_aside(self, keys: Iterable[bytes]) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        with self._transaction() as db:
            for key in keys:
                db.execute(
                    "INSERT INTO quarantine (user, round, reason, at, data)"
                    " SELECT user, round, 'checksum mismatch', ?, data FROM private WHERE user = ?",
                    (at, key),
                )
                db.execute("DELETE FROM private WHERE user = ?", (key,))

    def _refuse_quarantined(self, keys: Iterable[bytes]) -> None:
        aside = {key for (key,) in self._query("SELECT user FROM quarantine")}
        if refused := [key for key in keys if key in aside]:
            self._raise_unusable({"is damaged and set aside": refused})

    def _raise_unusable(self, keys_by_fault: Mapping[str, Iterable[bytes]]) -> NoReturn:
        pairs = [(_quoted(_user(key)), fault) for fault, keys in keys_by_fault.items() for key in keys]
        faults = [f"the entry of user {user} {fault}" for user, fault in pairs]
        faults[-1] += (
            ". It is not used, and not begun again by itself: `homespun vault list RUN --quarantine` shows what "
            "is set aside, and `homespun vault forget RUN USER` lets that user begin again."
        )
        raise_faults(VaultError, str(self.path), faults)


def _take_lock(folder: Path) -> BinaryIO:
    """The run's lock, held while the returned file is open: the kernel frees it even after a kill -9.

    The descriptor is close-on-exec, so that a worker process started meanwhile cannot keep it.
    """
    file = os.fdopen(os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with file:
            holder = file.read(20).decode(errors="replace").strip()
        who = f"process {holder}" if holder.isdigit() else "another process"
        raise RunError(f"{folder}: in use by {who}. Wait until it ends, or stop it.") from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n".encode())
    return file


def _create(path: Path, identity: str) -> None:
    """Make the file under another name, then rename it: what bears the name is never half made."""
    log = path.with_name(path.name + "-wal")
    if log.exists():  # SQLite would replay it, though it belongs to the missing file, into a new one
        raise VaultError(f"{path}: missing, but its log {log.name} is there. Restore it, or move the log.")
    new = path.with_name(path.name + ".new")
    for leftover in path.parent.glob(new.name + "*"):
        leftover.unlink()
    # SQLite gives its -wal and -shm files the mode of the database, so none is ever readable by others.
    os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    head = {"round": 0, "records": 0, "state_sha256": None}
    try:
        with closing(_connect(new, read_only=False)) as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("BEGIN")
            for statement in SCHEMA:
                db.execute(statement)
            _put(db, key="identity", value=identity.encode())
            _put(db, key="token", value=f"{path.parent.resolve()} {secrets.token_hex(8)}".encode())
            _put(db, key="head", value=json.dumps(head).encode())
            db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            db.execute("COMMIT")
    except sqlite3.Error as error:
        raise _explained(path, error) from error
    os.replace(new, path)
    directory = os.open(path.parent, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def _connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    mode = "ro" if read_only else "rw"
    if read_only and not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists():
        mode = "ro&immutable=1"  # on a read-only disk SQLite cannot make the files that readers share
    try:
        uri = f"{path.absolute().as_uri()}?mode={mode}"
        db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S)
    except sqlite3.Error as error:
        raise _explained(path, error) from error
    db.text_factory = bytes  # a damaged text is then a failed checksum, not a decoding error
    return db


def _explained(path: Path, error: Exception) -> VaultError:
    """What SQLite said, and what to do about it."""
    instead = {OverflowError: sqlite3.SQLITE_TOOBIG, UnicodeDecodeError: sqlite3.SQLITE_CORRUPT}
    code = getattr(error, "sqlite_errorcode", instead.get(type(error), -1))
    remedy = _REMEDIES.get(code & 0xFF, "The last commit is intact.")  # the low byte is the kind of error
    return VaultError(f"{path}: {error}. {remedy}")


def _put(db: sqlite3.Connection, *, key: str, value: bytes) -> None:
    db.execute("INSERT OR REPLACE INTO run VALUES (?, ?, ?)", (key, value, _digest(key, value)))


def _digest(*parts: object) -> bytes:
    """sha256 of the parts and of where each ends; whatever a damaged file gives back can be digested."""
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()


def _key(user: str) -> bytes:
    """A user's id as bytes, one to one: as SQLite text a NUL or a lone surrogate would not survive."""
    if not user:
        raise VaultError("a user id is empty. Any other text is legal.")
    return user.encode("utf-8", "surrogatepass")


def _user(key: bytes) -> str:
    try:
        return key.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:  # a damaged key must still be listed
        return key.decode("utf-8", "backslashreplace")


def _quoted(user: str) -> str:
    return repr(user) if len(user) <= 100 else f"{user[:100]!r}... ({len(user)} characters)"
