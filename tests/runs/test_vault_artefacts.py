"""What a run keeps beside its state: under a name, with a checksum."""

import sqlite3
from contextlib import closing

import pytest

from homespun.core.errors import VaultError
from homespun.runs.vault import VAULT_FILE, Vault

WEIGHTS = bytes(range(256))


def test_artefacts_are_stored_replaced_and_listed(tmp_path):
    with Vault.open(tmp_path, identity={"run": 1}) as vault:
        assert vault.artefacts() == [] and vault.artefact("reranker") is None
        vault.keep_artefact("reranker", b"first")
        vault.keep_artefact("reranker", WEIGHTS)
        vault.keep_artefact("a name * with ? signs", b"")
        vault.commit(round=1, state=b"state", records=[{"kind": "round"}])
    with Vault.open(tmp_path, read_only=True) as vault:
        assert vault.artefacts() == ["a name * with ? signs", "reranker"]
        assert vault.artefact("reranker") == WEIGHTS and vault.artefact("a name * with ? signs") == b""
        assert vault.state == b"state" and len(vault.history()) == 1
        with pytest.raises(VaultError, match="read-only"):
            vault.keep_artefact("reranker", b"other")


def test_a_staged_artefact_is_written_with_the_next_commit(tmp_path):
    with Vault.open(tmp_path, identity={}) as vault:
        vault.stage_artefact("count", b"7")
        vault.stage_artefact("words", b"zorblax", user="ann")
        vault.stage_artefact("words", b"quibnor", user="bo")
        assert vault.artefacts() == [] and not vault.forget("ann")
        vault.commit(round=1)
        assert vault.artefact("count") == b"7" and vault.artefact("words", user="bo") == b"quibnor"
        assert vault.artefact("words", user="ann") is None  # forgotten before
        vault.stage_artefact("count", b"8")
    with Vault.open(tmp_path) as vault:  # what was staged is lost with the process
        vault.commit(round=2)
        assert vault.artefact("count") == b"7"


def test_an_artefact_needs_a_name(tmp_path):
    with Vault.open(tmp_path, identity={}) as vault, pytest.raises(VaultError, match="needs a name"):
        vault.keep_artefact("", b"data")


def test_a_damaged_artefact_is_not_used(tmp_path):
    with Vault.open(tmp_path, identity={}) as vault:
        vault.keep_artefact("reranker", WEIGHTS)
    with closing(sqlite3.connect(tmp_path / VAULT_FILE)) as db:
        db.execute("UPDATE run SET value = ? WHERE key = 'artefact/reranker'", (b"changed",))
        db.commit()
    with (
        Vault.open(tmp_path, read_only=True) as vault,
        pytest.raises(VaultError, match="reranker is missing or does not match"),
    ):
        vault.artefact("reranker")


def test_a_dropped_artefact_is_gone(tmp_path):
    with Vault.open(tmp_path, identity={}) as vault:
        vault.keep_artefact("one", b"1")
        vault.keep_artefact("two", b"2")
        vault.drop_artefact("one")
        vault.drop_artefact("never kept")
        assert vault.artefacts() == ["two"]
        assert vault.artefact("one") is None


def test_artefacts_of_a_user_go_with_the_user(tmp_path):
    users = ("ann", "ann*", "[a]/..\0", "\udc80")
    with Vault.open(tmp_path, identity={}) as vault:
        vault.keep_artefact("profile", b"of the run")
        for user in users:
            vault.keep_artefact("profile", user.encode("utf-8", "surrogatepass"), user=user)
    with Vault.open(tmp_path) as vault:
        for place, user in enumerate(users):
            assert vault.artefact("profile", user=user) == user.encode("utf-8", "surrogatepass")
            assert vault.artefact("other", user=user) is None
            assert vault.forget(user) and vault.artefact("profile", user=user) is None
            assert len(vault.artefacts()) == len(users) - place  # the others and the run's
            assert not vault.forget(user)
        assert vault.artefact("profile") == b"of the run"
    assert b"ann*" not in (tmp_path / VAULT_FILE).read_bytes()
