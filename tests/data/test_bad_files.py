"""Bad input: every fault is named with its place and remedy, nothing is echoed, nothing is written."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pytest
from corpus_files import ROWS, SECRET, load, refusal, write_as, write_jsonl

from homespun.core.errors import SettingsError, UnknownNameError
from homespun.data import Columns


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_misspelt_column_names_the_nearest(kind: str, tmp_path: Path) -> None:
    rows = [{"usr": "a", "txt": SECRET, "context": "c"}]
    message = refusal(write_as(kind, tmp_path, rows), UnknownNameError)
    assert "2 faults" in message
    assert "no column 'user'. Did you mean 'usr'? Columns: 'usr', 'txt', 'context'." in message
    assert "no column 'text'. Did you mean 'txt'?" in message


def test_an_optional_column_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", [{"user": "a", "text": SECRET, "subreddit": "x"}])
    assert load(path).labels == ()
    message = refusal(path, UnknownNameError, columns=Columns(label="subredit"))
    assert "no column 'subredit'. Did you mean 'subreddit'?" in message


GOOD = b'{"user": "a", "text": "fine", "label": "x"}\n'


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (f"{SECRET}".encode(), "line 2: not JSON"),
        (b'{"user": "a", "text": "' + SECRET.encode(), "line 2: not JSON"),
        (b'{"user": NaN, "text": "x"}', "line 2: not JSON"),
        (b"[" * 200_000, "line 2: not JSON"),
        (f'["{SECRET}"]'.encode(), "line 2: not a JSON object"),
        (b"12", "line 2: not a JSON object"),
        (b'{"user": "a", "text": "caf\xe9"}', "line 2: not UTF-8 (at byte 27)"),
        (b'{"user": "", "text": "x", "label": "x"}', "line 2: 'user' is empty."),
        (b'{"user": null, "text": "x", "label": "x"}', "line 2: no 'user'."),
        (b'{"text": "x", "label": "x"}', "line 2: no 'user'."),
        (
            b'{"user": ["a"], "text": "x", "label": "x"}',
            "line 2: 'user' is a list. Expected text or a number.",
        ),
        (b'{"user": "a", "label": "x"}', "line 2: no 'text'."),
        (b'{"user": "a", "text": 5, "label": "x"}', "line 2: 'text' is a number. Expected text."),
        (b'{"user": "a", "text": {"b": 1}, "label": "x"}', "line 2: 'text' is a JSON object. Expected text."),
        (b'{"user": "a", "text": false, "label": "x"}', "line 2: 'text' is a boolean. Expected text."),
        (b'{"user": "a", "text": "x"}', "line 2: no 'label'. Either all examples have one or none."),
        (b'{"user": "a", "text": "x", "label": ""}', "line 2: 'label' is empty."),
        (b'{"user": "\\ud800", "text": "x", "label": "x"}', "line 2: 'user' contains an unpaired surrogate"),
        (b'{"user": "a", "text": "' + b"x" * 10_000_000 + b'"}', "line 2: 10,000,000 bytes or longer"),
    ],
)
def test_a_bad_line_is_named_and_not_echoed(line: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(GOOD + line + b"\n" + GOOD)
    message = refusal(path)
    assert says in message
    assert "line 1" not in message and "line 3" not in message and "xxx" not in message


def test_all_faults_at_once_and_many_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(b"oops\n" + GOOD + b'{"user": "", "text": 5, "label": "x"}\n')
    message = refusal(path)
    assert all(part in message for part in ("3 faults", "line 1: not JSON", "line 3: 'user'", "line 3: 'text'"))
    path.write_bytes(GOOD + b"oops\n" * 50)
    message = refusal(path)
    assert "50 faults" in message and "line 21" in message and "line 22" not in message
    assert message.endswith("and 30 more.")


def test_an_endless_line_is_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for _ in range(100):
            stream.write(b"x" * 1_000_000)
        stream.write(b"\n" + GOOD)
    tracemalloc.start()
    message = refusal(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert message.endswith("line 1: 10,000,000 bytes or longer. Split it into several.")
    assert peak < 50_000_000


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", "\ufeff".encode()], ids=["no bytes", "blank lines", "a byte order mark"]
)
def test_an_empty_corpus_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(content)
    assert "the corpus is empty" in refusal(path)
    path = tmp_path / "c.csv"
    path.write_bytes(content + b"user,text\n")
    assert "the corpus is empty" in refusal(path)


def test_broken_gzip_and_parquet(tmp_path: Path) -> None:
    whole = write_as("jsonl.gz", tmp_path, ROWS * 500).read_bytes()
    path = tmp_path / "broken.jsonl.gz"
    for content in (whole[: len(whole) // 2], GOOD, whole[:20] + b"\xff" * 20 + whole[40:]):
        path.write_bytes(content)
        assert "the gzip data is damaged or truncated" in refusal(path)
    whole = write_as("parquet", tmp_path, ROWS * 500).read_bytes()
    path = tmp_path / "broken.parquet"
    for content in (whole[: len(whole) // 2], GOOD, b"", whole[:-200]):
        path.write_bytes(content)
        assert "not a Parquet file, or damaged or truncated" in refusal(path)


def test_parquet_rows_are_checked_too(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"user": ["a", "", None], "text": ["x", "y", "z"], "n": [1, 2, 3]})
    path = tmp_path / "c.parquet"
    pyarrow.parquet.write_table(table, path)
    message = refusal(path)
    assert "row 2: 'user' is empty." in message and "row 3: no 'user'." in message
    with pytest.raises(UnknownNameError, match="no column 'who'"):
        load(path, columns=Columns(user="who", text="what"))
    message = refusal(path, columns=Columns(user="n", text="n"))
    assert "row 1: 'n' is a number. Expected text." in message


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (f"user,text\na,{SECRET},more\n", "line 2: 3 cells where the header has 2."),
        (f"user,text\n{SECRET}\n", "line 2: 1 cells where the header has 2."),
        (f'user,text\na,"{SECRET}\nb,c\n', "line 3: not CSV"),
        ("user,text\n,x\n", "line 2: 'user' is empty."),
        ("user,text,text\na,b,c\n", "line 1: a column name occurs twice in the header."),
        ("user,text\na,caf\udce9\n", "line 2: not UTF-8"),
    ],
)
def test_bad_csv(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert says in refusal(path)


def test_csv_lines_are_counted_past_bad_ones(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_bytes(b"user,text\na,caf\xe9\na," + b"x" * 10_000_000 + b"\n\na\n")
    message = refusal(path)
    assert "3 faults" in message
    assert all(says in message for says in ("line 2: not UTF-8", "line 3: 10,000,000", "line 5: 1 cells"))


def test_unknown_settings_and_files(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "corpus.jsonl", [{"user": "a", "text": "b"}])
    assert "unknown setting 'min_example'. Did you mean 'min_examples'?" in refusal(
        path, SettingsError, settings={"min_example": 3}
    )
    assert "max_users" in refusal(path, SettingsError, settings={"max_users": 0})
    assert "most_frequent_labels needs labels" in refusal(path, settings={"most_frequent_labels": 3})
    assert "min_context_examples needs contexts" in refusal(path, settings={"min_context_examples": 3})
    assert "no such file. Did you mean 'corpus.jsonl'?" in refusal(tmp_path / "corpsu.jsonl")
    other = tmp_path / "corpus.yaml"
    other.write_text("x")
    assert "must end in .jsonl, .json, .csv, .tsv (each also with .gz) or .parquet" in refusal(other)
    (tmp_path / "folder.csv").mkdir()
    assert "a folder" in refusal(tmp_path / "folder.csv")
