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
