"""Small files that become large: refused at a stated limit, before memory runs out."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from corpus_files import ROWS, load, refusal, write_as

from homespun.core.errors import DataError, SettingsError
from homespun.data.limited_streams import EXAMPLE_BYTES, ByteLimit

# Loads files in a separate process and prints how each was rejected and the peak memory so far, in MB.
MEASURED = """
import json, re, sys
import pyarrow.parquet
from homespun.core.errors import DataError
from homespun.data import builtin_names, load_federation

builtin_names()  # what is measured comes on top of the libraries

def peak():  # of this process alone; what getrusage says may be the parent's
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1000

before, found = peak(), []
for path, settings in json.loads(sys.argv[1]):
    try:
        load_federation(path, settings=settings)
        found.append(["", peak() - before])
    except DataError as error:
        found.append([str(error), peak() - before])
print(json.dumps(found))
"""


def measured(files: list[tuple[Path, dict[str, int]]]) -> list[tuple[str, float]]:
    given = json.dumps([(str(path), settings) for path, settings in files])
    done = subprocess.run([sys.executable, "-c", MEASURED, given], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [(said, megabytes) for said, megabytes in json.loads(done.stdout)]


def gzip_bomb(path: Path, line: bytes, *, megabytes: int, head: bytes = b"") -> Path:
    """The same line repeated, in gzip members of 10 MB."""
    member = gzip.compress(line * (10_000_000 // len(line)))
    path.write_bytes(gzip.compress(head) + member * (megabytes // 10))
    return path


def parquet_of(path: Path, text: pyarrow.Array, **options: object) -> Path:
    table = pyarrow.table({"user": pyarrow.array(["u"] * len(text)), "text": text})
    pyarrow.parquet.write_table(table, path, compression="zstd", store_schema=False, **options)
    return path


def one_text(text: str, *, times: int) -> pyarrow.Array:
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * times, pyarrow.int32()), pyarrow.array([text]))


@pytest.mark.system
def test_bombs_are_refused_with_bounded_memory(tmp_path: Path) -> None:
    """Each of them is gigabytes, if it is read to its end."""
    tiny = b'{"user":"a","text":"b"}'
    files = [
        # a gzip file of many tiny examples, in which every example counts as what it takes in memory
        gzip_bomb(tmp_path / "c.jsonl.gz", tiny + b"\n", megabytes=1000),
        gzip_bomb(tmp_path / "c.csv.gz", b"a,b\n", megabytes=1000, head=b"user,text\n"),
        gzip_bomb(tmp_path / "c.json.gz", tiny + b",", megabytes=1000, head=b"["),
        # a dictionary of one text, and 5,000 rows that say it
        parquet_of(tmp_path / "c.parquet", one_text("x" * 300_000, times=5000)),
        # each text is the one before it and a few letters more
        parquet_of(
            tmp_path / "d.parquet",
            pyarrow.array(["x" * 100_000 + f"{row:04}" for row in range(2000)]),
            use_dictionary=False,
            column_encoding={"text": "DELTA_BYTE_ARRAY"},
        ),
    ]
    assert all(path.stat().st_size < 3_000_000 for path in files)
    long = gzip_bomb(tmp_path / "long.jsonl.gz", tiny[:-2] + b"x" * 100_000 + b'"}\n', megabytes=900)
    *at_10_mb, (usual, most) = measured([*((path, {"max_bytes": 10_000_000}) for path in files), (long, {})])
    for said, megabytes in at_10_mb:
        assert "more than 10 MB once unpacked" in said
        assert megabytes < 300, said
    assert usual == (
        f"{long}: more than 256 MB once unpacked, from a file of 1 MB. "
        "If you trust it, allow more: --data-set max_bytes=2560000000."
    )
    assert most < 600


def test_more_rows_than_there_is_room_for_are_refused_before_they_are_read(tmp_path: Path) -> None:
    rows = 100_000
    path = parquet_of(tmp_path / "c.parquet", one_text("hello", times=rows))
    assert path.stat().st_size < 1000
    allowed = rows * (EXAMPLE_BYTES + 20)
    assert "more than 10 MB once unpacked" in refusal(path, settings={"max_bytes": rows * EXAMPLE_BYTES})
    assert len(load(path, settings={"max_bytes": allowed}).examples(0)) == rows


def test_a_page_counts_as_what_it_unpacks_to_whatever_the_footer_says(tmp_path: Path) -> None:
    """Sizes in the footer may be wrong; those in the page headers are what is decompressed."""
    path = parquet_of(tmp_path / "c.parquet", pyarrow.array(["x" * 5_000_000]), use_dictionary=False)
    column = pyarrow.parquet.ParquetFile(path).metadata.row_group(0).column(1)
    content = path.read_bytes()
    said = varint(2 * column.total_uncompressed_size)
    at = content.rindex(said)  # in the footer
    path.write_bytes(content[:at] + varint(2 * 3_000_000)[: len(said)] + content[at + len(said) :])
    assert pyarrow.parquet.ParquetFile(path).metadata.row_group(0).column(1).total_uncompressed_size == 3_000_000
    assert "more than 4 MB once unpacked" in refusal(path, settings={"max_bytes": 4_000_000})


def varint(value: int) -> bytes:
    """A varint of Thrift's compact protocol."""
    found = bytearray()
    while value >= 128:
        found.append(value % 128 + 128)
        value //= 128
    return bytes([*found, value])


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv", "parquet"])
def test_the_limit_can_be_set(kind: str, tmp_path: Path) -> None:
    path = write_as(kind, tmp_path, ROWS * 1000)
    assert "more than 0.2 MB once unpacked" in refusal(path, settings={"max_bytes": 200_000})
    assert len(load(path, settings={"max_bytes": 1_000_000}).users) == 2
    assert "max_bytes" in refusal(path, SettingsError, settings={"max_bytes": 0})


def test_the_limit_is_not_part_of_the_fingerprint(tmp_path: Path) -> None:
    path = write_as("csv", tmp_path, ROWS)
    assert load(path, settings={"max_bytes": 10**6}).fingerprint == load(path).fingerprint


@pytest.mark.parametrize(
    ("packed", "limit"), [(1_000_000, 256_000_000), (30_000_000, 7_500_000_000), (10**9, 20 * 10**9)]
)
def test_the_default_limit(packed: int, limit: int) -> None:
    """250 times the file, at least 256 MB, at most 20 GB."""
    byte_limit = ByteLimit("f", packed=packed)
    byte_limit.spend(limit)
    with pytest.raises(DataError, match="max_bytes"):
        byte_limit.spend(1)
