"""Private state, kept at home: one SQLite file in a run's folder.

The vault holds what makes each user different, together with the server's state and the history of the
rounds, so that all of a round is on disk or none of it. Rows are staged in memory and written by `commit`
in one transaction. Every stored value has a checksum, and a second list says who has a row: a damaged entry
is reported and set aside, never silently begun again. `docs/vault.md` has the layout and the promises.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, Self

from torch import Tensor

from homespun.core.errors import MessageError, RunError, UnknownNameError, VaultError, raise_faults
from homespun.core.settings import current_identity
from homespun.core.tree import Tree, from_bytes, require_like, to_bytes
from homespun.runs.identity import require_same_run
from homespun.runs.vault_connection import VaultConnection
from homespun.runs.vault_file import (
    LOCK_FILE,
    VAULT_FILE,
    check_file,
    close_to_others,
    connect,
    create,
    digest,
    files_of,
    put,
    read_object,
    refuse_links,
    take_lock,
)
from homespun.runs.vault_rows import Entry, Quarantined, bytes_of, number_of, quoted, user_key, user_of
from homespun.system.disk import make_folder

ARTEFACT = "artefact/"  # before an artefact's name, in the keys of the run's values

__all__ = ["LOCK_FILE", "VAULT_FILE", "Entry", "Quarantined", "Vault"]


class Vault(VaultConnection):
    """The private rows, server state and history of one run. Build it with `Vault.open`."""

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

        A different identity is refused with the difference, and so is a symbolic link in place of one of the vault's
        files. A writer holds the run's lock until `close` or its death; a reader takes no lock. `max_pages` caps the
        file, as a disk of that size would.
        """
        path, text = Path(folder) / VAULT_FILE, json.dumps(identity)
        refuse_links(path)
        with ExitStack() as undo:
            try:
                if not path.exists() and (identity is None or read_only):
                    raise RunError(f"{folder}: no run here (no {VAULT_FILE}). Check the name, or train.")
                lock = None
                if not read_only:
                    make_folder(path.parent, mode=0o700)
                    lock = undo.enter_context(take_lock(path.parent))
                    if not path.exists():
                        create(path, text)
                    close_to_others(path)
                db = undo.enter_context(closing(connect(path, read_only=read_only)))
            except OSError as error:
                raise RunError(
                    f"{folder}: cannot be used as a run folder ({error}). "
                    "Name a folder that you own and may write to, on a disk with room."
                ) from error
            check_file(db, path, read_only=read_only)
            vault = cls(path, db=db, lock=lock)
            kept = vault.identity  # read in any case: a damaged one is found here
            require_same_run(path.parent, kept=kept, asked=kept if identity is None else identity)
            if max_pages is not None:
                vault._query(f"PRAGMA max_page_count={int(max_pages)}")
            undo.pop_all()
        return vault

    def remove(self) -> None:
        """The file of a run that never began."""
        for file in files_of(self.path):
            file.unlink(missing_ok=True)
        self.close()

    # ---- the run ----

    @property
    def identity(self) -> dict[str, Any]:
        with self._meaningful("identity"):
            return current_identity(read_object(self._value("identity")))

    @property
    def token(self) -> str:
        """Which run this is, for a ledger that is kept elsewhere: another run in the same folder has another token."""
        with self._meaningful("token"):
            token = self._value("token").decode()
            if not token:
                raise ValueError("empty")
            return token

    @property
    def round(self) -> int:
        """The last committed round; 0 before the first."""
        return self._head().round

    @property
    def state(self) -> bytes | None:
        """The server's state as of `round`, or None when none was ever committed."""
        with self.snapshot():
            expected = self._head().state_sha256
            state = None if expected is None else self._value("state")
        if state is not None and digest("state", state).hex() != expected:
            raise self._damaged("the server's state is not the one of the last round")
        return state

    def history(self) -> list[dict[str, Any]]:
        """Every committed record, in order."""
        with self.snapshot():
            count = self._head().records
            rows = self._query("SELECT id, record, sha256 FROM history ORDER BY id")
        if len(rows) != count or any(digest(id, record) != sha for id, record, sha in rows):
            raise self._damaged("the history of rounds does not match its checksums")
        try:
            return [read_object(record) for _, record, _ in rows]
        except (TypeError, ValueError):
            raise self._damaged("the history of rounds holds what is not a record") from None

    # ---- artefacts: what a run makes beside its state, such as the weights of a reranker ----

    def keep_artefact(self, name: str, data: bytes) -> None:
        """Keep an artefact of the run under a name; one of the same name is replaced."""
        if not name:
            raise VaultError(f"{self.path}: an artefact needs a name.")
        with self._transaction() as db:
            put(db, key=ARTEFACT + name, value=data)

    def artefact(self, name: str) -> bytes | None:
        """An artefact as it was kept; None if there is none of this name."""
        with self.snapshot():
            return self._value(ARTEFACT + name) if name in self.artefacts() else None

    def artefacts(self) -> list[str]:
        """The names of all artefacts."""
        rows = self._query("SELECT key FROM run WHERE key GLOB ? ORDER BY key", (ARTEFACT + "*",))
        return [user_of(key)[len(ARTEFACT) :] for (key,) in rows]

    # ---- private rows ----

    def private(self, user: str) -> dict[str, Tensor] | None:
        """A user's private tensors, staged or else committed; None for a user never seen."""
        return self.private_many([user]).get(user)

    def private_many(
        self, users: Iterable[str], *, like: Tree | None = None, copies: Tree | None = None
    ) -> dict[str, dict[str, Tensor]]:
        """The private tensors of those users who have any, in the order asked.

        Rows that are not `like` these tensors, by name, shape and type, are refused: a checksum has no key, and says
        nothing of who made a row. A row may have `copies` as well: a home's own, of shared parameters.
        """
        found: dict[str, dict[str, Tensor]] = {}
        faults: dict[str, list[bytes]] = {}
        for user, data in self._rows(users).items():
            try:
                found[user] = from_bytes(data)
                if like is not None:
                    own = {name: value for name, value in (copies or {}).items() if name in found[user]}
                    require_like({**like, **own}, found[user])
            except MessageError as error:
                faults.setdefault(f"is not what this run keeps: {error}", []).append(user_key(user))
        if faults:
            self._raise_unusable(faults)
        return found

    def stage(self, private: Mapping[str, Tree]) -> None:
        """Keep these users' tensors, as they are now, in memory for the next `commit`."""
        rows = {user_key(user): to_bytes(tree) for user, tree in private.items()}
        self._refuse_quarantined(rows)
        self._staged.update(rows)

    def commit(
        self,
        *,
        round: int,
        state: bytes | None = None,
        records: Sequence[Mapping[str, Any]] = (),
        shows_round: bool = True,
    ) -> None:
        """Write the staged rows, the state and the records up to `round` in one transaction.

        Without a state, the server's state stays as it was. A row has the round, or without `shows_round` 0: where
        cohorts are secret, nothing says when a user was drawn. When this fails the last commit is intact and
        the rows stay staged, so that a later call may succeed.
        """
        lines, shown = [json.dumps(record).encode() for record in records], round if shows_round else 0
        with self._transaction() as db:
            head = self._head()
            if round < head.round:
                raise VaultError(f"{self.path}: round {round} is over; round {head.round} is committed.")
            db.executemany(
                "INSERT INTO private (user, round, sha256, data) VALUES (?, ?, ?, ?) ON CONFLICT (user)"
                " DO UPDATE SET round = excluded.round, sha256 = excluded.sha256, data = excluded.data",
                ((key, shown, digest(key, shown, data), data) for key, data in self._staged.items()),
            )
            known = ((digest(key),) for key in self._staged)
            db.executemany("INSERT OR IGNORE INTO known VALUES (?)", known)
            numbered = enumerate(lines, start=head.records + 1)
            history = ((n, line, digest(n, line)) for n, line in numbered)
            db.executemany("INSERT INTO history VALUES (?, ?, ?)", history)
            sha256 = head.state_sha256
            if state is not None:
                put(db, key="state", value=state)
                sha256 = digest("state", state).hex()
            changed = replace(head, round=round, records=head.records + len(lines), state_sha256=sha256)
            put(db, key="head", value=changed.to_json())
        self._staged.clear()

    # ---- for the person whose data it is ----

    @property
    def count(self) -> int:
        """How many users have a committed row."""
        return int(self._query("SELECT count(*) FROM private")[0][0])

    def entries(self, *, offset: int = 0, limit: int | None = None) -> list[Entry]:
        """The committed rows, ordered by the bytes of the user's id."""
        sql = "SELECT user, round, length(data) FROM private ORDER BY user LIMIT ? OFFSET ?"
        rows = self._query(sql, (-1 if limit is None else limit, offset))
        return [Entry(user=user_of(key), round=number_of(round), size_bytes=size) for key, round, size in rows]

    def users(self, *, offset: int = 0, limit: int | None = None) -> list[str]:
        return [entry.user for entry in self.entries(offset=offset, limit=limit)]

    def export(self, user: str) -> bytes:
        """A user's private tensors as a safetensors file."""
        rows = self._rows([user])
        if user not in rows:
            remedy = "`homespun vault list RUN` shows who has one."
            raise UnknownNameError(f"{self.path}: no private entry of user {quoted(user)}. {remedy}")
        self.private_many([user])  # a row that holds no tensors is refused
        return rows[user]

    def quarantined(self) -> list[Quarantined]:
        """The entries set aside because they failed their checksum, oldest first."""
        rows = self._query("SELECT user, round, reason, at, data FROM quarantine ORDER BY id")
        return [
            Quarantined(user_of(user), number_of(round), reason=user_of(reason), at=user_of(at), data=bytes_of(data))
            for user, round, reason, at, data in rows
        ]

    def forget(self, user: str) -> bool:
        """Remove all that is kept of a user from the vault's files; False if there was nothing.

        Costs a rewrite of the file: `secure_delete` zeroes a deleted row, but page splits have left stale
        copies in unused space, and only a rewrite drops those. An interrupted call may be repeated.
        """
        key = user_key(user)
        found = self._staged.pop(key, None) is not None
        with self._transaction() as db:
            for table in ("private", "quarantine"):
                found |= db.execute(f"DELETE FROM {table} WHERE user = ?", (key,)).rowcount > 0
            found |= db.execute("DELETE FROM known WHERE user_sha256 = ?", (digest(key),)).rowcount > 0
        removed = f"{quoted(user)} is removed, but traces may remain in the files: forget again after that."
        try:
            self._query("VACUUM")
            [(busy, _, _)] = self._query("PRAGMA wal_checkpoint(TRUNCATE)")
        except VaultError as error:
            raise VaultError(f"{error} {removed}") from error
        if busy:
            raise VaultError(f"{self.path}: another process reads this run; let it end. {removed}")
        return found

    # ---- damage ----

    def _rows(self, users: Iterable[str]) -> dict[str, bytes]:
        """Verified bytes of those users who have any; all damaged entries among them in one error."""
        keys = {user_key(user): user for user in users}
        found = {key: self._staged[key] for key in keys if key in self._staged}
        damaged: list[bytes] = []
        with self.snapshot():
            self._refuse_quarantined(keys)
            asked = keys.keys() - found.keys()
            sql = "SELECT user, round, sha256, data FROM private WHERE user IN"
            for key, round, sha, data in self._among(sql, asked):
                if digest(key, round, data) == sha and isinstance(data, bytes):
                    found[key] = data
                else:
                    damaged.append(key)
            digests = {digest(key): key for key in asked - set(damaged)}
            seen = self._among("SELECT user_sha256 FROM known WHERE user_sha256 IN", digests)
            listed = {digests[sha] for (sha,) in seen}
        if damaged and not self.read_only:
            self._set_aside(damaged)
        faults = {
            "does not match its checksum": damaged,
            "can no longer be found": sorted(listed - found.keys()),
            "was never committed by homespun": sorted((asked & found.keys()) - listed),
        }
        if any(faults.values()):
            self._raise_unusable(faults)
        return {user: found[key] for key, user in keys.items() if key in found}

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
        pairs = [(quoted(user_of(key)), fault) for fault, keys in keys_by_fault.items() for key in keys]
        faults = [f"the entry of user {user} {fault}" for user, fault in pairs]
        faults[-1] += (
            ". It is not used, and not begun again by itself: `homespun vault list RUN --quarantine` shows what "
            "is set aside, and `homespun vault forget RUN USER` lets that user begin again."
        )
        raise_faults(VaultError, str(self.path), faults)
