"""Small corpora on disk, and how they are refused."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from homespun.core.errors import DataError
from homespun.data import load_federation
from homespun.data.table import TableFederation

SECRET = "the content is nobody's business"
ROWS: list[dict[str, Any]] = [
    {"user": "bo", "context": "work", "text": "hello", "label": "b"},
    {"user": "al", "context": "home", "text": "good night", "label": "a"},
    {"user": "bo", "context": "home", "text": "bye", "label": "a"},
]


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def load(path: Path, **options: Any) -> TableFederation:
    federation = load_federation(path, **options)
    assert isinstance(federation, TableFederation)
    return federation


def refusal(path: Path, error: type[Exception] = DataError, **options: Any) -> str:
    """The message with which a file is refused: names the file, echoes nothing, leaves nothing behind."""
    before = sorted(path.parent.iterdir())
    with pytest.raises(error) as caught:
        load_federation(path, **options)
    assert sorted(path.parent.iterdir()) == before
    assert str(path) in str(caught.value)
    assert SECRET not in str(caught.value)
    return str(caught.value)


def write_as(kind: str, folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / f"corpus.{kind}"
    if kind == "jsonl":
        return write_jsonl(path, rows)
    if kind == "jsonl.gz":
        path.write_bytes(gzip.compress(write_jsonl(folder / "plain.jsonl", rows).read_bytes()))
    elif kind == "csv":
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path
