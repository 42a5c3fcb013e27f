"""Files with a few bytes changed: read, or refused with a typed error, whatever is wrong with them."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from homespun.core.errors import InputError
from homespun.data import load_federation

ROWS = [{"user": f"u{row % 7}", "text": f"hello wörld {row}", "label": str(row % 3)} for row in range(60)]
LINES = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
TABLE = "user;text;label\n" + "".join(f'u{row % 7};"a;""b{row}";x\n' for row in range(60))
TEXTS = {
    "c.jsonl": LINES.encode(),
    "c.jsonl.gz": gzip.compress(LINES.encode(), mtime=0),
    "c.json": json.dumps(ROWS).encode(),
    "c.csv": TABLE.encode(),
    "c.tsv": TABLE.encode("utf-16"),
}


def mutated(content: bytes, draw: random.Random) -> bytes:
    found = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 5))):
        place = draw.randrange(len(found))
        kind = draw.random()
        if kind < 0.7:
            found[place] = draw.choice((draw.randrange(256), *b'\0\xff"[]{},;\n\r'))
        elif kind < 0.85:
            del found[place : place + draw.randrange(1, 20)]
        else:
            found[place:place] = draw.randbytes(draw.randrange(1, 9))
    return bytes(found) or b"x"


def require_typed(path: Path, content: bytes) -> None:
    draw = random.Random(path.name)
    for _ in range(100):
        path.write_bytes(mutated(content, draw))
        try:
            load_federation(path)
        except InputError as error:
            assert "hello" not in str(error)


@pytest.mark.parametrize("name", TEXTS)
def test_text_files(name: str, tmp_path: Path) -> None:
    require_typed(tmp_path / name, TEXTS[name])


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY"])
def test_parquet_files(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / f"{encoding}.parquet"
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist(ROWS),
        path,
        compression="zstd",
        use_dictionary=encoding == "PLAIN",
        column_encoding=None if encoding == "PLAIN" else {"text": encoding},
    )
    require_typed(path, path.read_bytes())


def test_a_column_name_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"user": ["a"], "text": ["b"], "other": ["c"]}), path)
    path.write_bytes(path.read_bytes().replace(b"other", b"oth\xffr"))
    with pytest.raises(InputError, match="not a Parquet file, or damaged"):
        load_federation(path)
