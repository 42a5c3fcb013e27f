"""The vault: the private parameters of all users of a run, in one SQLite file in its folder.

It also holds the server's state and the history of the rounds, so that a round is on disk completely or not at all.
Rows are staged in memory and written by `commit` in one transaction. Every stored value has a checksum, and a second
table lists the users that have a row: a damaged entry is reported and quarantined, never silently replaced by a new
one. `docs/vault.md` has the layout and the guarantees.
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
    connect,
    create,
    digest,
    files_of,
    put,
    read_object,
    reject_links,
    restrict_permissions,
    take_lock,
)
from homespun.runs.vault_rows import Entry, Quarantined, as_bytes, as_integer, decode_user, encode_user, quote_user
from homespun.system.disk import make_folder

ARTEFACT = "artefact/"  # prefix of an artefact's key in the table `run`

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
        """Open the vault of the run in `folder`. With an identity, create it if it does not exist.

        A different identity is rejected with the differences, and so is a symbolic link in place of one of the vault's
        files. A writer holds the run's lock until `close` or until its process ends; a reader takes no lock.
        `max_pages` limits the size of the file, as a full disk would.
        """
        path, text = Path(folder) / VAULT_FILE, json.dumps(identity)
        reject_links(path)
        with ExitStack() as undo:
            try:
                if not path.exists() and (identity is None or read_only):
                    raise RunError(f"{folder}: no run here (no {VAULT_FILE}). Check the path, or train a run.")
                lock = None
                if not read_only:
                    make_folder(path.parent, mode=0o700)
                    lock = undo.enter_context(take_lock(path.parent))
                    if not path.exists():
                        create(path, text)
                    restrict_permissions(path)
                db = undo.enter_context(closing(connect(path, read_only=read_only)))
            except OSError as error:
                raise RunError(
                    f"{folder}: cannot be used as a run folder ({error}). "
                    "Name a folder that you own and can write to, on a disk with free space."
                ) from error
            check_file(db, path, read_only=read_only)
            vault = cls(path, db=db, lock=lock)
            stored = vault.identity  # always read, so that damage is found here
            require_same_run(path.parent, stored=stored, asked=stored if identity is None else identity)
            if max_pages is not None:
                vault._query(f"PRAGMA max_page_count={int(max_pages)}")
            undo.pop_all()
        return vault

    def remove(self) -> None:
        """Delete the files of a run that never started, and close it."""
        for file in files_of(self.path):
            file.unlink(missing_ok=True)
        self.close()

    # Run and server state

    @property
    def identity(self) -> dict[str, Any]:
        with self._validated("identity"):
            return current_identity(read_object(self._value("identity")))

    @property
    def token(self) -> str:
        """Identifies this run in a ledger. A later run in the same folder has another token."""
        with self._validated("token"):
            token = self._value("token").decode()
            if not token:
                raise ValueError("empty")
            return token

    @property
    def round(self) -> int:
        """The last committed round; 0 before the first commit."""
        return self._head().round

    @property
    def state(self) -> bytes | None:
        """The server's state as of `round`; None if none was committed."""
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
            raise self._damaged("the history of rounds has an entry that is not a record") from None

    # Artefacts: other products of a run, such as the weights of a reranker. An artefact of a user goes with the user.

    def keep_artefact(self, name: str, data: bytes, *, user: str | None = None) -> None:
        """Store an artefact under a name, and replace one of the same name."""
        if not name:
            raise VaultError(f"{self.path}: an artefact needs a name.")
        with self._transaction() as db:
            put(db, key=ARTEFACT + _owned_by(user) + name, value=data)

    def stage_artefact(self, name: str, data: bytes, *, user: str | None = None) -> None:
        """Write an artefact with the next `commit`, in its transaction."""
        self._staged_artefacts[ARTEFACT + _owned_by(user) + name] = data

    def drop_artefact(self, name: str) -> None:
        """Remove an artefact, if there is one of this name."""
        with self._transaction() as db:
            db.execute("DELETE FROM run WHERE key = ?", (ARTEFACT + name,))

    def artefact(self, name: str, *, user: str | None = None) -> bytes | None:
        """The artefact of this name, or None."""
        name = _owned_by(user) + name
        with self.snapshot():
            return self._value(ARTEFACT + name) if name in self.artefacts() else None

    def artefacts(self) -> list[str]:
        """The names of all artefacts."""
        rows = self._query("SELECT key FROM run WHERE key GLOB ? ORDER BY key", (ARTEFACT + "*",))
        return [decode_user(key)[len(ARTEFACT) :] for (key,) in rows]

    # Private rows

    def private(self, user: str) -> dict[str, Tensor] | None:
        """A user's private tensors, staged or else committed; None for a user never seen."""
        return self.private_many([user]).get(user)

    def private_many(
        self, users: Iterable[str], *, like: Tree | None = None, copies: Tree | None = None
    ) -> dict[str, dict[str, Tensor]]:
        """The private tensors of those users that have any, in the order of `users`.

        Rows that do not match `like` in names, shapes and types are rejected: a checksum has no key, and does not prove
        who wrote a row. A row may also have `copies`: the client's own copies of shared parameters.
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
                faults.setdefault(f"does not fit this run: {error}", []).append(encode_user(user))
        if faults:
            self._raise_unusable(faults)
        return found

    def stage(self, private: Mapping[str, Tree]) -> None:
        """Serialize these users' tensors now and write them with the next `commit`."""
        rows = {encode_user(user): to_bytes(tree) for user, tree in private.items()}
        self._reject_quarantined(rows)
        self._staged.update(rows)

    def commit(
        self,
        *,
        round: int,
        state: bytes | None = None,
        records: Sequence[Mapping[str, Any]] = (),
        shows_round: bool = True,
    ) -> None:
        """Write the staged rows and artefacts, the state and the records up to `round` in one transaction.

        Without a state, the server's state is unchanged. Rows record the round or, without `shows_round`, 0: if cohorts
        are secret, a row must not disclose when its user was drawn. If this fails, the last commit is intact, and what
        was staged stays staged, so that a later call may succeed.
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
            for key, value in self._staged_artefacts.items():
                put(db, key=key, value=value)
            sha256 = head.state_sha256
            if state is not None:
                put(db, key="state", value=state)
                sha256 = digest("state", state).hex()
            changed = replace(head, round=round, records=head.records + len(lines), state_sha256=sha256)
            put(db, key="head", value=changed.to_json())
        self._staged.clear()
        self._staged_artefacts.clear()

    # Access of users to their own data

    @property
    def count(self) -> int:
        """The number of users with a committed row."""
        return int(self._query("SELECT count(*) FROM private")[0][0])

    def entries(self, *, offset: int = 0, limit: int | None = None) -> list[Entry]:
        """The committed rows, ordered by the bytes of the user's id."""
        sql = "SELECT user, round, length(data) FROM private ORDER BY user LIMIT ? OFFSET ?"
        rows = self._query(sql, (-1 if limit is None else limit, offset))
        return [Entry(user=decode_user(key), round=as_integer(round), size_bytes=size) for key, round, size in rows]

    def users(self, *, offset: int = 0, limit: int | None = None) -> list[str]:
        return [entry.user for entry in self.entries(offset=offset, limit=limit)]

    def export(self, user: str) -> bytes:
        """A user's private tensors as a safetensors file."""
        rows = self._rows([user])
        if user not in rows:
            remedy = "`homespun vault list RUN` lists the users that have one."
            raise UnknownNameError(f"{self.path}: no private entry of user {quote_user(user)}. {remedy}")
        self.private_many([user])  # raises if the row does not hold tensors
        return rows[user]

    def quarantined(self) -> list[Quarantined]:
        """The quarantined entries, which failed their checksums, oldest first."""
        rows = self._query("SELECT user, round, reason, at, data FROM quarantine ORDER BY id")
        return [
            Quarantined(
                decode_user(user),
                as_integer(round),
                reason=decode_user(reason),
                at=decode_user(at),
                data=as_bytes(data),
            )
            for user, round, reason, at, data in rows
        ]

    def forget(self, user: str) -> bool:
        """Remove everything of a user from the vault's files. Returns False if there was nothing.

        Rewrites the whole file: `secure_delete` overwrites a deleted row with zeros, but page splits leave stale copies
        in unused space, which only a rewrite removes. An interrupted call may be repeated.
        """
        key, artefacts = encode_user(user), ARTEFACT + _owned_by(user)
        found = self._staged.pop(key, None) is not None
        for name in [name for name in self._staged_artefacts if name.startswith(artefacts)]:
            del self._staged_artefacts[name]
        with self._transaction() as db:
            for table in ("private", "quarantine"):
                found |= db.execute(f"DELETE FROM {table} WHERE user = ?", (key,)).rowcount > 0
            found |= db.execute("DELETE FROM known WHERE user_sha256 = ?", (digest(key),)).rowcount > 0
            found |= db.execute("DELETE FROM run WHERE key GLOB ?", (f"{artefacts}*",)).rowcount > 0
        self.rewrite(f"{quote_user(user)} is removed, but traces may remain in the files: then run forget again.")
        return found

    def rewrite(self, otherwise: str = "") -> None:
        """Rewrite the whole file, so that nothing is left in it that was removed. An error says what is the case
        `otherwise`."""
        try:
            self._query("VACUUM")
            [(busy, _, _)] = self._query("PRAGMA wal_checkpoint(TRUNCATE)")
        except VaultError as error:
            raise VaultError(f"{error} {otherwise}") from error
        if busy:
            raise VaultError(f"{self.path}: another process is reading this run. Wait until it has ended. {otherwise}")

    # Verification and quarantine

    def _rows(self, users: Iterable[str]) -> dict[str, bytes]:
        """Verified rows of those users that have any. All damaged entries are reported in one error."""
        keys = {encode_user(user): user for user in users}
        found = {key: self._staged[key] for key in keys if key in self._staged}
        damaged: list[bytes] = []
        with self.snapshot():
            self._reject_quarantined(keys)
            asked = keys.keys() - found.keys()
            sql = "SELECT user, round, sha256, data FROM private WHERE user IN"
            for key, round, sha, data in self._query_keys(sql, asked):
                if digest(key, round, data) == sha and isinstance(data, bytes):
                    found[key] = data
                else:
                    damaged.append(key)
            digests = {digest(key): key for key in asked - set(damaged)}
            seen = self._query_keys("SELECT user_sha256 FROM known WHERE user_sha256 IN", digests)
            listed = {digests[sha] for (sha,) in seen}
        if damaged and not self.read_only:
            self._quarantine(damaged)
        faults = {
            "does not match its checksum": damaged,
            "can no longer be found": sorted(listed - found.keys()),
            "was never committed by homespun": sorted((asked & found.keys()) - listed),
        }
        if any(faults.values()):
            self._raise_unusable(faults)
        return {user: found[key] for key, user in keys.items() if key in found}

    def _quarantine(self, keys: Iterable[bytes]) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        with self._transaction() as db:
            for key in keys:
                db.execute(
                    "INSERT INTO quarantine (user, round, reason, at, data)"
                    " SELECT user, round, 'checksum mismatch', ?, data FROM private WHERE user = ?",
                    (at, key),
                )
                db.execute("DELETE FROM private WHERE user = ?", (key,))

    def _reject_quarantined(self, keys: Iterable[bytes]) -> None:
        quarantined = {key for (key,) in self._query("SELECT user FROM quarantine")}
        if rejected := [key for key in keys if key in quarantined]:
            self._raise_unusable({"is damaged and quarantined": rejected})

    def _raise_unusable(self, keys_by_fault: Mapping[str, Iterable[bytes]]) -> NoReturn:
        pairs = [(quote_user(decode_user(key)), fault) for fault, keys in keys_by_fault.items() for key in keys]
        faults = [f"the entry of user {user} {fault}" for user, fault in pairs]
        faults[-1] += (
            ". It is not used, and not replaced automatically: `homespun vault list RUN --quarantine` lists "
            "quarantined entries, and `homespun vault forget RUN USER` removes one, so that the user starts as new."
        )
        raise_faults(VaultError, str(self.path), faults)


def _owned_by(user: str | None) -> str:
    """The prefix of the names of a user's artefacts: the id in hexadecimal, because it may contain any character."""
    return "" if user is None else f"{encode_user(user).hex()}/"
