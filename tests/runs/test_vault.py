"""What the vault keeps, refuses and forgets: small facts in one process."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load

from homespun.core.errors import RunError, UnknownNameError, VaultError
from homespun.runs.vault import LOCK_FILE, VAULT_FILE, Entry, Vault
from homespun.runs.vault_file import APPLICATION_ID, SCHEMA_VERSION

IDENTITY = {"method": "furl", "version": 1, "settings": {"rate": 0.1, "sizes": [32, 64]}, "seed": 7}


def row(*values: float) -> dict[str, torch.Tensor]:
    return {"user.embedding": torch.tensor(values)}


def values(tree: dict[str, torch.Tensor] | None) -> list[float] | None:
    return None if tree is None else tree["user.embedding"].tolist()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "a run"


# ---- rounds ----


def test_a_new_vault_is_at_round_0_with_nothing_in_it(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY) as vault:
        assert (vault.round, vault.state, vault.history()) == (0, None, [])
        assert (vault.count, vault.users(), vault.quarantined(), vault.private("ann")) == (0, [], [], None)
        assert vault.identity == IDENTITY


def test_a_commit_persists_after_reopening(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY) as vault:
        vault.stage({"ann": row(1.0, 2.0), "bob": row(3.0)})
        vault.commit(round=1, state=b"one", records=[{"round": 1, "loss": 0.5}])
        vault.stage({"ann": row(4.0)})
        vault.commit(round=2, state=b"two", records=[{"round": 2, "loss": float("nan")}])
    with Vault.open(folder, identity=IDENTITY) as vault:
        assert (vault.round, vault.state) == (2, b"two")
        assert json.dumps(vault.history()) == '[{"round": 1, "loss": 0.5}, {"round": 2, "loss": NaN}]'
        assert (values(vault.private("ann")), values(vault.private("bob"))) == ([4.0], [3.0])
        assert [(entry.user, entry.round) for entry in vault.entries()] == [("ann", 2), ("bob", 1)]


def test_staged_rows_are_visible_but_not_persistent(folder: Path) -> None:
    tensor = torch.tensor([1.0])
    with Vault.open(folder, identity=IDENTITY) as vault:
        vault.stage({"ann": {"user.embedding": tensor}})
        tensor.add_(1.0)  # what was staged is a copy
        assert values(vault.private("ann")) == [1.0]
        assert vault.count == 0
    with Vault.open(folder, identity=IDENTITY) as vault:
        assert vault.private("ann") is None


def test_rounds_of_several_stages_commit_together(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY) as vault:
        vault.stage({"ann": row(1.0), "bob": row(1.0)})
        vault.stage({"ann": row(2.0)})
        vault.commit(round=2, state=b"two", records=[{"round": 1}, {"round": 2}])
        assert (values(vault.private("ann")), values(vault.private("bob"))) == ([2.0], [1.0])
        assert [record["round"] for record in vault.history()] == [1, 2]


def test_a_commit_of_rows_leaves_the_state_unchanged(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY) as vault:
        vault.commit(round=3, state=b"three")
        vault.stage({"new": row(1.0)})
        vault.commit(round=3)
        assert (vault.state, vault.users()) == (b"three", ["new"])
        vault.commit(round=4)


def test_an_earlier_round_is_rejected(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY) as vault:
        vault.commit(round=3, state=b"three")
        with pytest.raises(VaultError, match="round 2 is over; round 3 is committed"):
            vault.commit(round=2, state=b"two")
        assert (vault.round, vault.state) == (3, b"three")


def test_a_record_that_is_not_json_writes_nothing(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY) as vault:
        vault.stage({"ann": row(1.0)})
        with pytest.raises(TypeError):
            vault.commit(round=1, state=b"one", records=[{"loss": object()}])
        assert (vault.round, vault.state, vault.count) == (0, None, 0)


def test_an_empty_state_is_a_state(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY) as vault:
        vault.commit(round=0, state=b"")
        assert vault.state == b""


# ---- users ----


def test_strange_ids_are_distinct_keys(folder: Path, tmp_path: Path) -> None:
    users = ["../../x", "A", "a", "a\0", "a\0b", "é", "e\u0301", "u" * 300, " ", "%", "'"]
    users += ["\ud800", "😀", "\ud83d\ude00"]  # the last is not the one before it, but two lone surrogates
    with Vault.open(folder, identity=IDENTITY) as vault:
        vault.stage({user: row(float(number)) for number, user in enumerate(users)})
        vault.commit(round=1)
    with Vault.open(folder) as vault:
        assert {user: values(vault.private(user)) for user in users} == {
            user: [float(number)] for number, user in enumerate(users)
        }
        assert sorted(vault.users()) == sorted(users)
        assert vault.forget("a\0") and vault.private("a") is not None and vault.private("a\0b") is not None
    assert sorted(path.name for path in folder.iterdir()) == [LOCK_FILE, VAULT_FILE]
    assert list(tmp_path.iterdir()) == [folder]


@settings(max_examples=60, deadline=None)
@given(user=st.text(st.characters(), min_size=1), other=st.text(st.characters(), min_size=1))
def test_any_text_is_a_valid_id(shared: Vault, user: str, other: str) -> None:
    shared.stage({user: row(1.0)})
    shared.stage({other: row(2.0)})
    assert values(shared.private(user)) == ([2.0] if user == other else [1.0])
    shared.commit(round=1)
    assert values(shared.private(user)) == ([2.0] if user == other else [1.0])
    assert {user, other} <= set(shared.users())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Vault:
    return Vault.open(tmp_path_factory.mktemp("shared"), identity=IDENTITY)


def test_an_empty_id_is_rejected(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY) as vault:
        for use in (vault.private, vault.export, vault.forget, lambda user: vault.stage({user: row(1.0)})):
            with pytest.raises(VaultError, match="a user id is empty"):
                use("")


def test_rows_have_the_order_of_the_query_without_new_users(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY) as vault:
        vault.stage({f"u{number}": row(float(number)) for number in range(1500)})
        vault.commit(round=1)
        vault.stage({"u7": row(-7.0)})
        asked = ["nobody", *(f"u{number}" for number in range(1201, 0, -1)), "u5"]
        found = vault.private_many(asked)
        assert list(found) == asked[1:-1]
        assert [values(tree)[0] for tree in found.values()] == [
            -7.0 if number == 7 else float(number) for number in range(1201, 0, -1)
        ]
        assert vault.private_many([]) == {}


def test_pages_of_users(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY) as vault:
        vault.stage({user: row(1.0) for user in "dbca"})
        vault.commit(round=5)
        assert vault.users() == ["a", "b", "c", "d"]
        assert vault.users(offset=1, limit=2) == ["b", "c"]
        assert vault.users(limit=0) == vault.users(offset=9) == []
        assert vault.entries(limit=1) == [Entry(user="a", round=5, size_bytes=len(vault.export("a")))]


def test_a_cohort_of_50_costs_the_same_in_a_large_vault(folder: Path) -> None:
    def seconds(vault: Vault, count: int) -> float:
        best = float("inf")
        for attempt in range(5):
            users = [f"u{(number * 7919 + attempt) % count}" for number in range(50)]
            start = time.perf_counter()
            assert len(vault.private_many(users)) == 50
            best = min(best, time.perf_counter() - start)
        return best

    with Vault.open(folder, identity=IDENTITY) as vault:
        tree = row(1.0)
        vault.stage({f"u{number}": tree for number in range(100)})
        vault.commit(round=1)
        small = seconds(vault, 100)
        vault.stage({f"u{number}": tree for number in range(5_000)})
        vault.commit(round=2)
        # A scan would cost 50 times as much; the tenfold margin is for a busy machine.
        assert seconds(vault, 5_000) < 10 * small


# ---- export and forget ----


def test_export_is_a_safetensors_file(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY) as vault:
        vault.stage({"ann": row(1.0, 2.0)})
        vault.commit(round=1)
        assert values(load(vault.export("ann"))) == [1.0, 2.0]
        with pytest.raises(UnknownNameError, match=r"no private entry of user 'bob'.*homespun vault list"):
            vault.export("bob")


def test_forget_removes_one_user_and_returns_whether_there_was_one(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY) as vault:
        vault.stage({"ann": row(1.0), "bob": row(2.0)})
        vault.commit(round=1, state=b"one", records=[{"round": 1}])
        vault.stage({"ann": row(5.0), "eve": row(6.0)})
        assert (vault.forget("ann"), vault.forget("eve"), vault.forget("ann")) == (True, True, False)
        assert vault.private("ann") is None and vault.private("eve") is None
        assert values(vault.private("bob")) == [2.0]
        vault.commit(round=2)
        assert (vault.users(), vault.state, vault.history()) == (["bob"], b"one", [{"round": 1}])


def raw_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


def test_after_forget_no_byte_of_the_user_is_in_any_file(folder: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    users = [f"user-{number * 2654435761 % 2**32:08x}" for number in range(600)]
    written: dict[str, list[bytes]] = {user: [] for user in users}
    with Vault.open(folder, identity=IDENTITY) as vault:
        for round in range(1, 13):  # rows that grow and shrink split pages, which leaves stale copies behind
            rows = {}
            for user in users[round % 3 :: 3]:
                size = int(torch.randint(8, 200, (), generator=generator))
                embedding = torch.randn(size, generator=generator)
                written[user].append(embedding.numpy().tobytes()[:16])
                rows[user] = {"user.embedding": embedding}
            vault.stage(rows)
            vault.commit(round=round)
        vault._query("PRAGMA wal_checkpoint(TRUNCATE)")
        raw = raw_bytes(folder)
        stale = [user for user in users if raw.count(user.encode()) > 2]  # more than the row and its index
        gone, stay = [*stale[:5], users[100]], users[101]
        assert len(gone) > 1 and stay not in gone
        for user in gone:
            assert vault.forget(user)
        raw = raw_bytes(folder)  # with the vault still open: the log is there too
        for user in gone:
            assert user.encode() not in raw
            assert not any(pattern in raw for pattern in written[user])
        assert stay.encode() in raw and written[stay][-1] in raw


def test_forget_reports_a_reader_that_holds_the_log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homespun.runs.vault_file.BUSY_TIMEOUT_S", 0.05)
    with Vault.open(folder, identity=IDENTITY) as vault, Vault.open(folder, read_only=True) as reader:
        vault.stage({"ann": row(1.0)})
        vault.commit(round=1)
        with reader.snapshot():
            assert reader.users() == ["ann"]
            with pytest.raises(VaultError, match="'ann' is removed, but traces may remain"):
                vault.forget("ann")
            assert reader.users() == ["ann"]
        assert vault.forget("ann") is False
        assert b"ann" not in raw_bytes(folder)


# ---- identity ----


def test_another_identity_is_rejected_with_each_difference(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY) as vault:
        vault.commit(round=1, state=b"one")
    before = raw_bytes(folder)
    other = {"method": "furl", "version": 2, "settings": {"rate": 0.3, "sizes": [32, 64], "new": True}}
    with pytest.raises(RunError) as caught:
        Vault.open(folder, identity=other)
    assert str(caught.value) == (
        f"{folder}: this folder holds a different run:\n"
        "  - seed: 7 in the folder, nothing asked for\n"
        "  - settings.new: nothing in the folder, true asked for\n"
        "  - settings.rate: 0.1 in the folder, 0.3 asked for\n"
        "  - version: 1 in the folder, 2 asked for\n"
        "To resume that run, use its settings and data. To start a new run, choose another folder."
    )
    assert raw_bytes(folder).replace(b"\n", b"") == before.replace(b"\n", b"")
    with Vault.open(folder, identity=IDENTITY) as vault:  # the refusal released the lock
        assert vault.state == b"one"


def test_identity_is_compared_as_json_and_may_be_left_out(folder: Path) -> None:
    with Vault.open(folder, identity={"sizes": (1, 2), "b": 1, "a": None}):
        pass
    with Vault.open(folder, identity={"a": None, "b": 1, "sizes": [1, 2]}):
        pass
    with Vault.open(folder) as vault:
        assert vault.identity == {"sizes": [1, 2], "b": 1, "a": None}
    with pytest.raises(RunError, match="different run"):
        Vault.open(folder, identity={"a": None, "b": 2, "sizes": [1, 2]}, read_only=True)


# ---- folders, modes and files ----


def test_file_modes(folder: Path) -> None:
    previous = os.umask(0)
    try:
        with Vault.open(folder, identity=IDENTITY) as vault:
            vault.stage({"ann": row(1.0)})
            vault.commit(round=1)
            names = {path.name for path in folder.iterdir()}
            assert names == {VAULT_FILE, VAULT_FILE + "-wal", VAULT_FILE + "-shm", LOCK_FILE}
            assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        os.umask(previous)


def test_permissions_of_a_readable_vault_are_restricted(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY):
        pass
    (folder / VAULT_FILE).chmod(0o644)
    with Vault.open(folder):
        assert stat.S_IMODE((folder / VAULT_FILE).stat().st_mode) == 0o600


def test_pragmas_of_the_file(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY) as vault:
        assert vault._query("PRAGMA journal_mode") == [(b"wal",)]
        assert vault._query("PRAGMA synchronous") == [(2,)]  # FULL
        assert vault._query("PRAGMA secure_delete") == [(1,)]
        assert vault._query("PRAGMA application_id") == [(APPLICATION_ID,)]
        assert vault._query("PRAGMA integrity_check") == [(b"ok",)]


@pytest.mark.parametrize("arguments", [{}, {"read_only": True}, {"read_only": True, "identity": IDENTITY}])
def test_opening_a_missing_run_writes_nothing(tmp_path: Path, arguments: dict) -> None:
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RunError, match=r"no run here \(no vault.sqlite\). Check the path, or train a run"):
            Vault.open(place, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunError, match=r"cannot be used as a run folder .*Name a folder that you own"):
            Vault.open(place, identity=IDENTITY)
    assert (tmp_path / "file").read_text() == "x"


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.open", refuse)  # modes do not stop root, who may run the tests
    with pytest.raises(RunError, match=r"Permission denied: '.*vault\.lock'\)\. Name a folder that you own"):
        Vault.open(tmp_path, identity=IDENTITY)


def test_a_newer_schema_is_rejected(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY):
        pass
    with sqlite3.connect(folder / VAULT_FILE) as db:
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    db.close()
    for read_only in (False, True):
        with pytest.raises(VaultError, match=r"has schema 2, but .* reads schema 1\. Upgrade homespun"):
            Vault.open(folder, read_only=read_only)


def test_an_incomplete_vault_is_created_again(folder: Path) -> None:
    folder.mkdir()
    (folder / (VAULT_FILE + ".new")).write_bytes(b"half")
    (folder / (VAULT_FILE + ".new-wal")).write_bytes(b"half")
    with Vault.open(folder, identity=IDENTITY) as vault:
        assert vault.round == 0
    assert sorted(path.name for path in folder.iterdir()) == [LOCK_FILE, VAULT_FILE]


def test_the_log_of_a_missing_vault_is_not_replayed(folder: Path) -> None:
    folder.mkdir()
    (folder / (VAULT_FILE + "-wal")).write_bytes(b"log")
    with pytest.raises(VaultError, match=r"missing, but its log vault\.sqlite-wal exists"):
        Vault.open(folder, identity=IDENTITY)
    assert (folder / (VAULT_FILE + "-wal")).read_bytes() == b"log"


def test_a_folder_name_with_special_characters(tmp_path: Path) -> None:
    place = tmp_path / "a?b#c%20 d&mode=rw"
    with Vault.open(place, identity=IDENTITY) as vault:
        vault.commit(round=1, state=b"one")
    with Vault.open(place, read_only=True) as vault:
        assert vault.state == b"one"
    assert [path.name for path in tmp_path.iterdir()] == [place.name]


# ---- writers and readers ----


def test_a_second_writer_is_rejected_and_the_first_continues(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY) as vault:
        with pytest.raises(RunError, match=f"in use by process {os.getpid()}. Wait until it ends"):
            Vault.open(folder, identity=IDENTITY)
        vault.commit(round=1, state=b"one")
    with Vault.open(folder) as vault:
        assert vault.state == b"one"


def test_the_lock_is_close_on_exec(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY) as vault:
        assert vault._lock is not None
        assert os.get_inheritable(vault._lock.fileno()) is False


def test_a_reader_reads_beside_the_writer_and_changes_nothing(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY) as vault:
        vault.stage({"ann": row(1.0)})
        vault.commit(round=1, state=b"one", records=[{"round": 1}])
        with Vault.open(folder, read_only=True) as reader:
            assert (reader.state, values(reader.private("ann")), reader.users()) == (b"one", [1.0], ["ann"])
            with reader.snapshot():
                assert reader.round == 1
                vault.stage({"ann": row(2.0)})
                vault.commit(round=2, state=b"two", records=[{"round": 2}])
                assert (reader.round, reader.state, values(reader.private("ann"))) == (1, b"one", [1.0])
                assert reader.history() == [{"round": 1}]
            assert (reader.round, reader.state, values(reader.private("ann"))) == (2, b"two", [2.0])
            for change in (lambda: reader.commit(round=3), lambda: reader.forget("ann")):
                with pytest.raises(VaultError, match="opened read-only"):
                    change()
    with Vault.open(folder, read_only=True) as reader:
        assert reader.round == 2


def test_a_reader_of_a_read_only_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Vault.open(folder, identity=IDENTITY) as vault:
        vault.commit(round=1, state=b"one")
    monkeypatch.setattr("os.access", lambda *_: False)
    before = sorted(folder.iterdir())
    with Vault.open(folder, read_only=True) as reader:
        assert reader.state == b"one"
    assert sorted(folder.iterdir()) == before


# ---- a full disk ----


def test_a_full_disk_keeps_the_last_commit_and_the_staged_rows(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY) as vault:
        vault.stage({"ann": row(1.0)})
        vault.commit(round=1, state=b"one", records=[{"round": 1}])
    with Vault.open(folder, identity=IDENTITY, max_pages=30) as vault:
        vault.stage({"ann": row(2.0), "big": {"user.embedding": torch.zeros(50_000)}})
        with pytest.raises(VaultError, match=r"disk is full\. The last commit is intact\. Make room"):
            vault.commit(round=2, state=b"two", records=[{"round": 2}])
        assert (vault.round, vault.state, vault.history()) == (1, b"one", [{"round": 1}])
        assert vault.users() == ["ann"]
        assert values(vault.private("ann")) == [2.0]  # still staged
        with Vault.open(folder, read_only=True) as reader:
            assert values(reader.private("ann")) == [1.0]
        vault._query("PRAGMA max_page_count=10000")  # room is made
        vault.commit(round=2, state=b"two", records=[{"round": 2}])
        assert (vault.state, vault.users()) == (b"two", ["ann", "big"])
        assert vault.history() == [{"round": 1}, {"round": 2}]


def test_after_a_full_disk_the_run_reopens_at_the_last_commit(folder: Path) -> None:
    with Vault.open(folder, identity=IDENTITY, max_pages=40) as vault:
        committed = 0
        with pytest.raises(VaultError, match="disk is full"):
            for round in range(1, 1000):
                vault.stage({f"u{round}": {"user.embedding": torch.full((500,), float(round))}})
                vault.commit(round=round, state=b"%d" % round)
                committed = round
    shutil.copytree(folder, folder.parent / "copy")
    with Vault.open(folder.parent / "copy", identity=IDENTITY) as vault:
        assert 1 < committed < 100
        assert (vault.round, vault.state, vault.count) == (committed, b"%d" % committed, committed)
