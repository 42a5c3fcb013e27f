"""A file is opened once: its fingerprint is that of the bytes which its examples come from."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from corpus_files import ROWS, load, write_as, write_jsonl

from homespun.core.errors import DataError
from homespun.data import Columns, readers
from homespun.data.readers import fingerprint
from homespun.data.table import Collector, Filters

KINDS = ["jsonl", "jsonl.gz", "csv", "parquet"]


def fingerprint_of(content: bytes) -> str:
    return fingerprint(hashlib.sha256(content).hexdigest(), Columns(), Filters())


def after_reading(monkeypatch: pytest.MonkeyPatch, happens: Any) -> None:
    """Run a function between reading the last example and computing the fingerprint."""
    collect = readers.collect

    def then(*arguments: Any, **options: Any) -> Collector:
        collected = collect(*arguments, **options)
        happens()
        return collected

    monkeypatch.setattr(readers, "collect", then)


@pytest.mark.parametrize("kind", KINDS)
def test_the_fingerprint_is_that_of_the_files_bytes(kind: str, tmp_path: Path) -> None:
    path = write_as(kind, tmp_path, ROWS * 50)
    assert load(path).fingerprint == fingerprint_of(path.read_bytes())


def test_a_known_file_keeps_its_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(b'{"user": "a", "text": "b"}\n')
    assert load(path).fingerprint == "1491f723662ffdc3565fc17a6ed674b2db8a7d2c9c4536b6408ec4e868f256a9"
    path = tmp_path / "c.csv"
    path.write_bytes(b"user,text\na,b\n")
    limited = load(path, settings={"max_users": 1})
    assert limited.fingerprint == "33262563fee8109769f0374d2f2471798ed0005835e06bd19171ac30e63bc6ea"


def test_all_members_and_padding_of_a_gzip_file_count(tmp_path: Path) -> None:
    plain = write_jsonl(tmp_path / "c.jsonl", ROWS).read_bytes()
    path = tmp_path / "c.jsonl.gz"
    path.write_bytes(gzip.compress(plain) + gzip.compress(plain) + b"\0" * 300)
    federation = load(path)
    assert len(federation.examples(0)) == 4
    assert federation.fingerprint == fingerprint_of(path.read_bytes())


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_file_that_grows_has_the_fingerprint_of_what_was_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_as(kind, tmp_path, ROWS)
    before = path.read_bytes()
    after_reading(monkeypatch, lambda: path.write_bytes(before + before.splitlines(keepends=True)[-1]))
    assert load(path).fingerprint == fingerprint_of(before)
    assert path.read_bytes() != before


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_replaced_has_the_fingerprint_of_what_was_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_as(kind, tmp_path, ROWS)
    before = path.read_bytes()
    other = tmp_path / "other"
    other.write_bytes(b"something else")
    after_reading(monkeypatch, lambda: os.replace(other, path))
    assert load(path).fingerprint == fingerprint_of(before)


def test_a_parquet_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_as("parquet", tmp_path, ROWS)
    grown = path.read_bytes() + b"\0"
    after_reading(monkeypatch, lambda: path.write_bytes(grown))
    with pytest.raises(DataError, match="changed while it was read"):
        load(path)
