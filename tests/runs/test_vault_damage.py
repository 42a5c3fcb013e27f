"""A damaged vault is reported, never repaired by forgetting: small facts, and a flip of any byte."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from homespun.core.errors import HomespunError, VaultError
from homespun.runs.vault import VAULT_FILE, Vault

IDENTITY = {"method": "furl", "seed": 7}
ANN, BOB = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Vault.open(tmp_path / "run", identity=IDENTITY) as vault:
        vault.stage({"ann": {"e": ANN}, "bob": {"e": BOB}})
        vault.commit(round=3, state=b"the server's state", records=[{"round": 3, "loss": 0.25}])
    return tmp_path / "run"


def flip(folder: Path, content: bytes) -> None:
    """Flip the lowest bit of the first byte of some content in the file, where it must occur once."""
    raw = bytearray((folder / VAULT_FILE).read_bytes())
    assert raw.count(content) == 1
    raw[raw.index(content)] ^= 1
    (folder / VAULT_FILE).write_bytes(raw)


def test_a_flipped_byte_is_reported_and_quarantined(folder: Path) -> None:
    flip(folder, ANN.numpy().tobytes())
    with Vault.open(folder, identity=IDENTITY) as vault:
        with pytest.raises(VaultError) as caught:
            vault.private_many(["bob", "ann"])
        assert str(caught.value) == (
            f"{folder / VAULT_FILE}: the entry of user 'ann' does not match its checksum. It is not used, "
            "and not replaced automatically: `homespun vault list RUN --quarantine` lists quarantined entries, and "
            "`homespun vault forget RUN USER` removes one, so that the user starts as new."
        )
        [entry] = vault.quarantined()
        assert (entry.user, entry.round, entry.reason) == ("ann", 3, "checksum mismatch")
        assert entry.at.endswith("+00:00") and len(entry.data) == len(vault.export("bob"))
        assert vault.users() == ["bob"]


def test_a_quarantined_user_stays_so_until_forgotten(folder: Path) -> None:
    flip(folder, ANN.numpy().tobytes())
    for _ in range(2):
        with Vault.open(folder, identity=IDENTITY) as vault:
            for use in (vault.private, vault.export, lambda user: vault.stage({user: {"e": ANN}})):
                with pytest.raises(VaultError, match="the entry of user 'ann'"):
                    use("ann")
            vault.commit(round=vault.round + 1, state=b"next")
            assert len(vault.quarantined()) == 1
            assert vault.private("bob")["e"].tolist() == BOB.tolist()
    with Vault.open(folder) as vault:
        damaged = vault.quarantined()[0].data
        assert damaged in (folder / VAULT_FILE).read_bytes()
        assert vault.forget("ann") is True
        assert damaged[-12:] not in b"".join(path.read_bytes() for path in folder.iterdir())
        assert (vault.private("ann"), vault.quarantined()) == (None, [])
        vault.stage({"ann": {"e": BOB}})
        vault.commit(round=9)
        assert vault.private("ann")["e"].tolist() == BOB.tolist()


def test_all_damaged_entries_of_a_cohort_are_reported_at_once(folder: Path) -> None:
    flip(folder, ANN.numpy().tobytes())
    flip(folder, BOB.numpy().tobytes())
    with Vault.open(folder) as vault:
        with pytest.raises(VaultError, match=r"(?s)2 faults:.*'ann' does not match.*'bob' does not match"):
            vault.private_many(["new", "bob", "ann"])
        assert [entry.user for entry in vault.quarantined()] == ["ann", "bob"]


def test_a_reader_reports_but_moves_nothing(folder: Path) -> None:
    flip(folder, ANN.numpy().tobytes())
    with Vault.open(folder, read_only=True) as vault:
        for _ in range(2):
            with pytest.raises(VaultError, match="'ann' does not match its checksum"):
                vault.private("ann")
        assert (vault.quarantined(), vault.users()) == ([], ["ann", "bob"])


@pytest.mark.parametrize("sql", [
    "DELETE FROM private WHERE user = CAST('ann' AS BLOB)",
    "UPDATE private SET user = CAST('anm' AS BLOB) WHERE user = CAST('ann' AS BLOB)",
])  # fmt: skip
def test_a_lost_entry_is_not_mistaken_for_a_new_user(folder: Path, sql: str) -> None:
    with sqlite3.connect(folder / VAULT_FILE) as db:
        assert db.execute(sql).rowcount == 1
    db.close()
    with Vault.open(folder) as vault:
        with pytest.raises(VaultError, match="the entry of user 'ann' can no longer be found"):
            vault.private("ann")
        assert vault.private("new") is None
        assert vault.forget("ann") is True
        assert vault.private("ann") is None


def test_swapped_entries_are_detected(folder: Path) -> None:
    with sqlite3.connect(folder / VAULT_FILE) as db:
        ann, bob = db.execute("SELECT data, sha256 FROM private ORDER BY user").fetchall()
        swap = "UPDATE private SET data = ?, sha256 = ? WHERE user = CAST(? AS BLOB)"
        db.executemany(swap, [(*bob, "ann"), (*ann, "bob")])
    db.close()
    with Vault.open(folder) as vault, pytest.raises(VaultError, match=r"(?s)'ann' does not.*'bob' does not"):
        vault.private_many(["ann", "bob"])


def test_a_damaged_state_is_an_error(folder: Path) -> None:
    flip(folder, b"the server's state")
    with Vault.open(folder, identity=IDENTITY) as vault:
        with pytest.raises(VaultError, match=r"the run's state .* does not match its checksum\. .*Restore"):
            _ = vault.state
        assert vault.round == 3
        assert vault.private("ann")["e"].tolist() == ANN.tolist()


def test_a_state_of_another_round_is_an_error(folder: Path) -> None:
    with Vault.open(folder) as vault, sqlite3.connect(folder / VAULT_FILE) as db:
        old = db.execute("SELECT * FROM run WHERE key = 'state'").fetchone()
        vault.commit(round=4, state=b"a later state")
        db.execute("INSERT OR REPLACE INTO run VALUES (?, ?, ?)", old)
        db.commit()
        with pytest.raises(VaultError, match="the server's state is not the one of the last round"):
            _ = vault.state
    db.close()


def test_a_damaged_or_short_history_is_an_error(folder: Path) -> None:
    shutil.copytree(folder, folder.parent / "short")
    flip(folder, b"0.25}")
    with sqlite3.connect(folder.parent / "short" / VAULT_FILE) as db:
        db.execute("DELETE FROM history")
    db.close()
    for place in (folder, folder.parent / "short"):
        with Vault.open(place) as vault, pytest.raises(VaultError, match="history of rounds does not match"):
            vault.history()


@pytest.mark.parametrize("content", [b"", b"not a database, but long enough to have a header\n" * 99])
def test_a_file_that_is_not_a_vault_is_rejected_and_kept(folder: Path, content: bytes) -> None:
    (folder / VAULT_FILE).write_bytes(content)
    for read_only in (False, True):
        with pytest.raises(VaultError, match=r"vault\.sqlite: .*damaged or not a vault; nothing was deleted"):
            Vault.open(folder, identity=IDENTITY, read_only=read_only)
    assert (folder / VAULT_FILE).read_bytes() == content


def test_another_database_is_rejected_and_kept(folder: Path) -> None:
    (folder / VAULT_FILE).unlink()
    with sqlite3.connect(folder / VAULT_FILE) as db:
        db.execute("CREATE TABLE letters (body TEXT)")
    db.close()
    before = (folder / VAULT_FILE).read_bytes()
    with pytest.raises(VaultError, match="damaged or not a vault"):
        Vault.open(folder, identity=IDENTITY)
    assert (folder / VAULT_FILE).read_bytes() == before


def test_a_destroyed_page_is_an_error(folder: Path) -> None:
    size = (folder / VAULT_FILE).stat().st_size
    with open(folder / VAULT_FILE, "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    with pytest.raises(VaultError, match=r"malformed.*Restore it from a copy"):
        Vault.open(folder, identity=IDENTITY)
    assert (folder / VAULT_FILE).stat().st_size == size


def answers(folder: Path) -> dict[str, object]:
    """All that a vault can be asked; what it refuses to answer is left out."""
    asks = {
        "state": lambda vault: vault.state,
        "round": lambda vault: vault.round,
        "history": lambda vault: vault.history(),
        "ann": lambda vault: vault.export("ann"),
        "bob": lambda vault: (vault.private("bob") or {}).get("e", BOB * 0).tolist(),
        "new": lambda vault: vault.private("new"),
    }
    found = {}
    with suppress(HomespunError), Vault.open(folder, identity=IDENTITY, read_only=True) as vault:
        for name, ask in asks.items():
            with suppress(HomespunError):
                found[name] = ask(vault)
    return found


def test_every_flipped_bit_is_detected_or_harmless(folder: Path) -> None:
    """Whatever single bit is wrong, each answer is the right one or an error, and no user begins again."""
    right, good = answers(folder), (folder / VAULT_FILE).read_bytes()
    assert len(right) == 6 and right["bob"] == BOB.tolist()
    chosen, refused = random.Random(0), 0
    # Most of a small file is unused space: flip what is used, all over the file.
    for place in chosen.sample([place for place, byte in enumerate(good) if byte], 250):
        raw = bytearray(good)
        raw[place] ^= 1 << chosen.randrange(8)
        (folder / VAULT_FILE).write_bytes(raw)
        found = answers(folder)
        assert found == {name: right[name] for name in found}, place
        refused += len(found) < len(right)
    assert refused > 60
