"""Parquet columns of every type: read as text, or refused in one typed error."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from corpus_files import SECRET, load, refusal

from homespun.data import Columns


def write(folder: Path, **columns: Any) -> Path:
    path = folder / "c.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"user": ["a", "b"], "text": ["x", "y"], **columns}), path)
    return path


@pytest.mark.parametrize(
    ("column", "labels"),
    [
        (pyarrow.array([date(2024, 1, 31), date(1969, 12, 31)]), ("1969-12-31", "2024-01-31")),
        (pyarrow.array([10_000_000, 0], pyarrow.date32()), ("1970-01-01", "29349-01-26")),
        (
            pyarrow.array([1000, 0], pyarrow.timestamp("ms")),
            ("1970-01-01 00:00:00.000", "1970-01-01 00:00:01.000"),
        ),
        (
            pyarrow.array([1, 0], pyarrow.timestamp("ns")),
            ("1970-01-01 00:00:00.000000000", "1970-01-01 00:00:00.000000001"),
        ),
        (pyarrow.array([60_000, 0], pyarrow.time32("ms")), ("00:00:00.000", "00:01:00.000")),
        (pyarrow.array([Decimal("1.50"), Decimal("-2.00")]), ("-2.00", "1.50")),
        (pyarrow.array([b"caf\xc3\xa9", b"b"]), ("b", "café")),
        (pyarrow.array(["p", "q"]).dictionary_encode(), ("p", "q")),
        (pyarrow.array([1, 2], pyarrow.int8()), ("1", "2")),
        (pyarrow.array([0.5, 2.0]), ("0.5", "2.0")),
        (pyarrow.array([True, False]), ("false", "true")),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pyarrow.Array) else "",
)
def test_labels_of_many_types_are_read(column: pyarrow.Array, labels: tuple[str, str], tmp_path: Path) -> None:
    assert load(write(tmp_path, label=column)).labels == labels


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pyarrow.array([timedelta(days=1), timedelta(0)]), "duration"),
        (pyarrow.array([[SECRET], []]), "list"),
        (pyarrow.array([{SECRET: SECRET}, {SECRET: ""}]), "struct"),
    ],
)
def test_labels_of_other_types_are_one_fault(column: pyarrow.Array, kind: str, tmp_path: Path) -> None:
    path = write(tmp_path, label=column)
    expected = f"{path}: 'label' is a column of type {kind}. Expected text, numbers or dates."
    assert refusal(path) == expected


def test_texts_are_text_or_bytes_in_utf8(tmp_path: Path) -> None:
    said = pyarrow.array([b"caf\xc3\xa9", b"b"])
    assert load(write(tmp_path, said=said), columns=Columns(text="said")).texts == ("café", "b")
    path = write(tmp_path, said=pyarrow.array([b"caf\xe9", b"b"]))
    assert refusal(path, columns=Columns(text="said")) == f"{path}: after row 0: not UTF-8."
    path = write(tmp_path, said=pyarrow.array([date(2024, 1, 31)] * 2))
    expected = f"{path}: 'said' is a column of type date32. Expected text."
    assert refusal(path, columns=Columns(text="said")) == expected


def test_a_duplicate_column_is_rejected_only_if_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    names = ["user", "text", "other", "other"]
    table = pyarrow.table([pyarrow.array([letter]) for letter in "abcd"], names=names)
    pyarrow.parquet.write_table(table, path)
    assert load(path).texts == ("b",)
    assert refusal(path, columns=Columns(text="other")) == f"{path}: 2 columns are named 'other'. Rename all but one."


def test_unread_columns_may_be_anything(tmp_path: Path) -> None:
    path = write(tmp_path, how_long=pyarrow.array([timedelta(1)] * 2), many=pyarrow.array([[1], [2]]))
    assert load(path).texts == ("x", "y")
