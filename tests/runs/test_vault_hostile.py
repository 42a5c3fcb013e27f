"""A vault that someone built on purpose: refused by its schema before a row is read, then row by row.

The checksums have no key, so all that is stored here matches them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import torch

from homespun.core.errors import VaultError
from homespun.core.tree import to_bytes
from homespun.runs.vault import VAULT_FILE, Vault
from homespun.runs.vault_file import digest

IDENTITY = {"method": "furl", "seed": 7}
ANN = {"e": torch.tensor([1.0, 2.0])}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Vault.open(tmp_path / "run", identity=IDENTITY) as vault:
        vault.stage({"ann": ANN})
        vault.commit(round=1, state=b"one", records=[{"round": 1}])
    return tmp_path / "run"


@contextmanager
def forging(folder: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(folder / VAULT_FILE)) as db, db:
        yield db


def retyped(db: sqlite3.Connection, table: str, sql: str) -> None:
    db.execute("PRAGMA writable_schema=ON")
    assert db.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (sql, table)).rowcount == 1


SCHEMAS = {
    "a view": lambda db: db.execute("CREATE VIEW everyone AS SELECT user FROM private"),
    "a view in a table's place": lambda db: db.executescript(
        "ALTER TABLE private RENAME TO other; CREATE VIEW private AS SELECT * FROM other"
    ),
    "a trigger": lambda db: db.execute("CREATE TRIGGER copy AFTER INSERT ON private BEGIN DELETE FROM quarantine; END"),
    "an extra table": lambda db: db.execute("CREATE TABLE extra (value)"),
    "an extra index": lambda db: db.execute("CREATE INDEX extra ON private (abs(round))"),
    "an extra column": lambda db: db.execute("ALTER TABLE private ADD COLUMN extra"),
    "a generated column": lambda db: db.execute("ALTER TABLE run ADD COLUMN extra AS (length(value))"),
    "a missing table": lambda db: db.execute("DROP TABLE known"),
    "another affinity": lambda db: retyped(
        db,
        "private",
        "CREATE TABLE private (id INTEGER PRIMARY KEY, user TEXT NOT NULL UNIQUE, round INTEGER NOT NULL,"
        " sha256 BLOB NOT NULL, data BLOB NOT NULL)",
    ),
    "another collation": lambda db: retyped(
        db, "run", "CREATE TABLE run (key TEXT PRIMARY KEY COLLATE NOCASE, value BLOB NOT NULL, sha256 BLOB NOT NULL)"
    ),
}


@pytest.mark.parametrize("kind", SCHEMAS)
def test_another_schema_is_rejected_before_a_row_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with forging(folder) as db:
        SCHEMAS[kind](db)
    read: list[str] = []
    monkeypatch.setattr(Vault, "_value", lambda _, key: read.append(key))
    for read_only in (True, False):
        with pytest.raises(VaultError, match=r"schema is not that of a vault.*Restore it from a copy"):
            Vault.open(folder, identity=IDENTITY, read_only=read_only)
    assert read == []


def test_the_schema_is_the_expected_one_after_every_use(folder: Path) -> None:
    with Vault.open(folder) as vault:
        vault.stage({"bob": ANN})
        vault.commit(round=2)
        assert vault.forget("ann")  # rewrites the file
    with Vault.open(folder, read_only=True) as vault:
        assert vault.users() == ["bob"]


def put(folder: Path, key: str, value: object) -> None:
    """A value of the run with the checksum that belongs to it."""
    with forging(folder) as db:
        db.execute("INSERT OR REPLACE INTO run VALUES (?, ?, ?)", (key, value, digest(key, value)))


HEAD = {"round": 1, "records": 1, "state_sha256": digest("state", b"one").hex(), "commits": 1}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("identity", b"\xff"),
        ("identity", b"[1]"),
        ("identity", b"[" * 100_000),
        ("identity", 7),
        ("head", b"{}"),
        ("head", b"null"),
        ("head", json.dumps({**HEAD, "round": "1"}).encode()),
        ("head", json.dumps({**HEAD, "round": -1}).encode()),
        ("head", json.dumps({**HEAD, "records": True}).encode()),
        ("head", json.dumps({**HEAD, "state_sha256": 5}).encode()),
        ("head", json.dumps({**HEAD, "round": 10**30}).encode()),
        ("state", 1.5),
        ("state", "one"),
        ("token", b"\xff\xfe"),
        ("token", b""),
        ("token", 7),
    ],
)
def test_invalid_values_with_a_matching_checksum_are_rejected(folder: Path, key: str, value: object) -> None:
    put(folder, key, value)
    refused = pytest.raises(VaultError, match=rf"the run's {key} .*Restore it from a copy")
    with refused, Vault.open(folder, identity=IDENTITY) as vault:
        _ = vault.round, vault.state, vault.token
        vault.commit(round=2)


@pytest.mark.parametrize("record", [b"{", b"[]", b"\xff", 5, "{}"])
def test_an_invalid_record_is_rejected(folder: Path, record: object) -> None:
    with forging(folder) as db:
        db.execute("UPDATE history SET record = ?, sha256 = ?", (record, digest(1, record)))
    with Vault.open(folder) as vault, pytest.raises(VaultError, match="history of rounds"):
        vault.history()


@pytest.mark.parametrize("data", [b"not safetensors", 7, "text", to_bytes(ANN) + b"more"])
def test_a_row_without_tensors_and_a_matching_checksum_is_rejected(folder: Path, data: object) -> None:
    key = b"ann"
    with forging(folder) as db:
        db.execute("UPDATE private SET data = ?, sha256 = ? WHERE user = ?", (data, digest(key, 1, data), key))
    with Vault.open(folder) as vault:
        for use in (vault.private, vault.export):
            with pytest.raises(VaultError, match="the entry of user 'ann'"):
                use("ann")


def test_a_forged_row_of_a_new_user_is_rejected(folder: Path) -> None:
    data = to_bytes(ANN)
    with forging(folder) as db:
        sql = "INSERT INTO private (user, round, sha256, data) VALUES (?, ?, ?, ?)"
        db.execute(sql, (b"eve", 1, digest(b"eve", 1, data), data))
    with Vault.open(folder) as vault:
        with pytest.raises(VaultError, match="the entry of user 'eve' was never committed by homespun"):
            vault.private_many(["ann", "eve"])
        with pytest.raises(VaultError, match="'eve' was never committed"):
            vault.export("eve")
        assert vault.private("ann") is not None
        assert vault.forget("eve") and vault.private("eve") is None


def test_rows_of_other_types_are_listed(folder: Path) -> None:
    with forging(folder) as db:
        db.execute("INSERT INTO private (user, round, sha256, data) VALUES (5, 'x', 6.5, 7)")
        db.execute("INSERT INTO quarantine (user, round, reason, at, data) VALUES (5, 'x', 6, NULL, 'y')")
    with Vault.open(folder) as vault:
        assert [(entry.user, entry.round) for entry in vault.entries()] == [("5", None), ("ann", 1)]
        [aside] = vault.quarantined()
        assert (aside.user, aside.round, aside.reason, aside.at, aside.data) == ("5", None, "6", "None", b"y")
        assert vault.private_many(["ann", "5"]).keys() == {"ann"}
