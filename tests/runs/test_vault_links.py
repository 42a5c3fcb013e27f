"""A run folder from a stranger may hold symbolic links: a vault is never written, truncated or chmodded through one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from homespun.cli import app
from homespun.core.errors import DiskError
from homespun.runs.vault import LOCK_FILE, VAULT_FILE, Vault

IDENTITY = {"method": "furl", "seed": 7}


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_bytes(b"precious")
    path.chmod(0o644)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Vault.open(tmp_path / "run", identity=IDENTITY) as vault:
        vault.commit(round=1, state=b"one")
    return tmp_path / "run"


def untouched(victim: Path) -> bool:
    return victim.read_bytes() == b"precious" and stat.S_IMODE(victim.stat().st_mode) == 0o644


@pytest.mark.parametrize("name", [LOCK_FILE, *(VAULT_FILE + end for end in ("", "-wal", "-shm", "-journal"))])
def test_a_link_in_place_of_a_file_of_the_vault_is_rejected(folder: Path, victim: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(victim)
    with pytest.raises(DiskError) as caught:
        Vault.open(folder, identity=IDENTITY)
    assert str(caught.value) == (
        f"{folder / name}: a symbolic link, and homespun never writes through one. Remove the link, or replace it "
        "with the file itself."
    )
    assert untouched(victim)


@pytest.mark.parametrize("name", [VAULT_FILE, VAULT_FILE + "-wal", VAULT_FILE + "-shm", VAULT_FILE + "-journal"])
def test_a_reader_rejects_a_link_too(folder: Path, victim: Path, name: str) -> None:
    """SQLite writes its log's index for readers too."""
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(victim)
    with pytest.raises(DiskError, match=f"{name}: a symbolic link"):
        Vault.open(folder, read_only=True)
    assert untouched(victim)


def test_a_dangling_link_creates_no_file(tmp_path: Path) -> None:
    for place, name in enumerate((LOCK_FILE, VAULT_FILE)):
        folder = tmp_path / str(place)
        folder.mkdir()
        (folder / name).symlink_to(tmp_path / "made")
        with pytest.raises(DiskError, match=f"{name}: a symbolic link"):
            Vault.open(folder, identity=IDENTITY)
    assert not (tmp_path / "made").exists()


def test_links_among_the_files_of_an_incomplete_vault_are_removed(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "run").mkdir()
    for end in (".new", ".new-wal", ".new-shm"):
        (tmp_path / "run" / (VAULT_FILE + end)).symlink_to(victim)
    with Vault.open(tmp_path / "run", identity=IDENTITY) as vault:
        assert vault.round == 0
    assert untouched(victim)


def test_a_link_beside_the_vault_is_left_alone(folder: Path, victim: Path) -> None:
    (folder / (VAULT_FILE + ".copy")).symlink_to(victim)
    with Vault.open(folder, identity=IDENTITY) as vault:
        vault.commit(round=2)
    assert untouched(victim) and (folder / (VAULT_FILE + ".copy")).is_symlink()


def test_a_lock_that_is_not_a_regular_file_is_rejected(folder: Path) -> None:
    (folder / LOCK_FILE).unlink()
    os.mkfifo(folder / LOCK_FILE)
    with pytest.raises(DiskError, match=r"vault\.lock: not a regular file.* Remove it"):
        Vault.open(folder, identity=IDENTITY)


def test_a_run_folder_may_be_reached_through_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    with Vault.open(tmp_path / "link", identity=IDENTITY) as vault:
        assert vault.round == 1


def test_an_export_follows_no_link_and_is_complete_or_absent(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Vault.open(folder) as vault:
        vault.stage({"ann": {"e": torch.tensor([1.0])}})
        vault.commit(round=2)

    def export(name: str) -> Result:
        return CliRunner().invoke(app, ["vault", "export", str(folder), "ann", "-o", str(tmp_path / name)])

    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert "already exists" in str(export("link").exception)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        assert "the disk is full" in str(export("mine").exception)
    assert not (tmp_path / "mine").exists() and not (tmp_path / "nowhere").exists()
    assert export("mine").exit_code == 0
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o600
