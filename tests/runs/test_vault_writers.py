"""Two writers, although there is a lock: one of them is refused, and nothing of it is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from homespun.core.errors import VaultError
from homespun.runs.vault import LOCK_FILE, Vault

IDENTITY = {"method": "furl", "seed": 7}


def row(value: float) -> dict[str, torch.Tensor]:
    return {"e": torch.tensor([value])}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Vault.open(tmp_path / "run", identity=IDENTITY) as vault:
        vault.stage({"ann": row(1.0), "bob": row(1.0)})
        vault.commit(round=1, state=b"one", records=[{"round": 1}])
    return tmp_path / "run"


def content(folder: Path) -> tuple[object, ...]:
    with Vault.open(folder, read_only=True) as vault:
        return vault.round, vault.state, vault.history(), {user: vault.export(user) for user in vault.users()}


def second_writer(folder: Path) -> Vault:
    (folder / LOCK_FILE).unlink()  # the first one holds a lock on a file that has no name any more
    return Vault.open(folder, identity=IDENTITY)


REFUSED = r"another process has written to this run since it was opened here.*nothing was written"


@pytest.mark.parametrize("round", [1, 2])
def test_a_second_writer_after_the_lock_was_removed_is_detected(folder: Path, round: int) -> None:
    with Vault.open(folder, identity=IDENTITY) as first, second_writer(folder) as second:
        second.stage({"bob": row(5.0)})
        second.commit(round=round, state=b"one" if round == 1 else b"two")  # round 1: as `personalize` commits
        before = content(folder)
        first.stage({"ann": row(6.0)})
        for _ in range(2):
            with pytest.raises(VaultError, match=REFUSED):
                first.commit(round=2, state=b"other", records=[{"round": 2}])
        assert content(folder) == before
        second.commit(round=3)  # the writer that was faster continues


def test_a_commit_of_the_first_writer_stops_the_second(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY) as first, second_writer(folder) as second:
        first.commit(round=2, state=b"two")
        with pytest.raises(VaultError, match=REFUSED):
            second.commit(round=2, state=b"other")
        with pytest.raises(VaultError, match=REFUSED):
            second.forget("ann")
        first.commit(round=3)
    assert content(folder)[:2] == (3, b"two")


def test_forgetting_counts_as_writing(folder: Path) -> None:
    """Else a round that was trained with the forgotten row would bring it back."""
    with Vault.open(folder, identity=IDENTITY) as first, second_writer(folder) as second:
        first.stage({"ann": row(2.0)})
        assert second.forget("ann")
        with pytest.raises(VaultError, match=REFUSED):
            first.commit(round=2)
    with Vault.open(folder) as vault:
        assert vault.users() == ["bob"]


def test_a_damaged_or_missing_token_is_an_error(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY) as vault:
        token = vault.token
    assert token.startswith(str(folder)) and len(token) == len(str(folder)) + 17
    with Vault.open(folder) as vault:
        vault._db.execute("UPDATE run SET value = value || 'x' WHERE key = 'token'")
        with pytest.raises(VaultError, match=r"the run's token is missing or does not match its checksum.*Restore"):
            _ = vault.token
        vault._db.execute("DELETE FROM run WHERE key = 'token'")
        with pytest.raises(VaultError, match="the run's token is missing"):
            _ = vault.token
