"""A disk that fills up while a vault is made leaves no vault, and the next attempt makes one."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from homespun.core.errors import VaultError
from homespun.runs.vault import LOCK_FILE, VAULT_FILE, Vault

IDENTITY = {"method": "furl", "seed": 7}


@pytest.mark.parametrize("at", ["CREATE TABLE known", "INSERT OR REPLACE INTO run", "COMMIT", "PRAGMA wal_checkpoint"])
def test_a_full_disk_while_a_vault_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    class Full(sqlite3.Connection):
        def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
            if sql.startswith(at):
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorcode = sqlite3.SQLITE_FULL
                raise error
            return super().execute(sql, *parameters)

    real = sqlite3.connect
    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", lambda *names, **options: real(*names, **options, factory=Full))
        with pytest.raises(VaultError, match=r"disk is full\. .*Make room on the disk"):
            Vault.open(tmp_path, identity=IDENTITY)
    assert os.listdir(tmp_path) == [LOCK_FILE]
    with Vault.open(tmp_path, identity=IDENTITY) as vault:
        assert vault.round == 0


def test_a_new_vault_is_complete_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a full disk keeps SQLite from moving out of its log when it closes the file would be left behind."""
    moved: list[bool] = []
    replace = os.replace

    def look(new: Path, path: Path) -> None:
        (tmp_path / "alone.sqlite").write_bytes(Path(new).read_bytes())
        with sqlite3.connect(f"{(tmp_path / 'alone.sqlite').as_uri()}?immutable=1", uri=True) as db:
            moved.append(db.execute("SELECT count(*) FROM run").fetchone() == (3,))
        db.close()
        replace(new, path)

    class NoCheckpointAtClose(sqlite3.Connection):
        def close(self) -> None:  # as if it failed: the log stays where it is
            pass

    real = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *names, **options: real(*names, **{"factory": NoCheckpointAtClose, **options})
    )
    monkeypatch.setattr(os, "replace", look)
    with Vault.open(tmp_path / "run", identity=IDENTITY) as vault:
        assert vault.path.name == VAULT_FILE
    assert moved == [True]
