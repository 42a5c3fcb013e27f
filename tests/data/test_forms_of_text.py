"""Semicolons, tabs, arrays, other encodings: read, or refused in one line that names what was found and the option."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from corpus_files import ROWS, SECRET, load, refusal

from homespun.core.errors import SettingsError, UnknownNameError
from homespun.data import Columns
from homespun.data.table import TableFederation

TABLE = "user,context,text,label\nbo,work,hello,b\nal,home,good night,a\nbo,home,bye,a\n"


def write(path: Path, content: str | bytes, encoding: str = "utf-8") -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
    return path


def is_rows(federation: TableFederation) -> bool:
    return (list(federation.users), federation.texts) == (["bo", "al"], ("hello", "bye", "good night"))


@pytest.mark.parametrize("sign", [";", "\t", "|"])
@pytest.mark.parametrize("ending", ["csv", "tsv", "tsv.gz"])
def test_the_delimiter_is_found_in_the_header(sign: str, ending: str, tmp_path: Path) -> None:
    content = TABLE.replace(",", sign).encode()
    path = write(tmp_path / f"c.{ending}", gzip.compress(content) if ending.endswith("gz") else content)
    assert is_rows(load(path))


def test_only_the_header_decides(tmp_path: Path) -> None:
    path = write(tmp_path / "c.csv", "user,text\na,one; two; three\nb;c,d\n")
    assert load(path).texts == ("one; two; three", "d")
    path = write(tmp_path / "c.csv", "user;text\na;one, two, three\n")
    assert load(path).texts == ("one, two, three",)
    path = write(tmp_path / "c.csv", 'user;"text"\na;"one; ""two"""\n')
    assert load(path).texts == ('one; "two"',)


def test_the_delimiter_can_be_set(tmp_path: Path) -> None:
    path = write(tmp_path / "c.csv", "user^text\na^one\n")
    assert load(path, settings={"delimiter": "^"}).texts == ("one",)
    path = write(tmp_path / "c.csv", "user\ttext\na\tone\n")
    assert load(path, settings={"delimiter": "tab"}).texts == load(path, settings={"delimiter": "\\t"}).texts
    for wrong in (";;", "", '"', "\n"):
        assert "delimiter: expected one character" in refusal(path, SettingsError, settings={"delimiter": wrong})
    with pytest.raises(UnknownNameError, match="no column 'user'"):  # it was asked for
        load(path, settings={"delimiter": ","})


def test_excels_first_line_names_the_delimiter(tmp_path: Path) -> None:
    path = write(tmp_path / "c.csv", "sep=;\r\n" + TABLE.replace(",", ";").replace("\n", "\r\n"))
    assert is_rows(load(path))
    path = write(tmp_path / "c.csv", "sep=^\n\nuser^text\na^b\na\n")
    assert "line 5: 1 cells where the header has 2." in refusal(path)


def test_a_misspelt_column_is_named_whatever_the_delimiter(tmp_path: Path) -> None:
    path = write(tmp_path / "c.csv", f"usr;text;where\na;{SECRET};x\n")
    message = refusal(path, UnknownNameError)
    assert "no column 'user'. Did you mean 'usr'? Columns: 'usr', 'text', 'where'." in message


def test_quotes_may_be_ordinary_characters(tmp_path: Path) -> None:
    path = write(tmp_path / "c.tsv", f'user\ttext\na\t"tis {SECRET}\nb\tx\n')
    assert "--data-set quotes=false" in refusal(path)
    assert load(path, settings={"quotes": False}).texts == (f'"tis {SECRET}', "x")


@pytest.mark.parametrize("ending", ["json", "jsonl", "json.gz"])
@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_of_objects(ending: str, indent: int | None, tmp_path: Path) -> None:
    content = (" \n" + json.dumps(ROWS, indent=indent) + "\n").encode()
    assert is_rows(load(write(tmp_path / f"c.{ending}", gzip.compress(content) if "gz" in ending else content)))


def test_a_json_file_may_have_one_object_a_line(tmp_path: Path) -> None:
    assert is_rows(load(write(tmp_path / "c.json", "\n".join(map(json.dumps, ROWS)))))


def test_a_long_array_is_read_piece_by_piece(tmp_path: Path) -> None:
    rows = [{"user": "ä", "text": "ö" * 1000, "n": number} for number in range(3000)]  # 6 MB of two-byte letters
    path = write(tmp_path / "c.json", json.dumps(rows, ensure_ascii=False))
    assert load(path).texts == ("ö" * 1000,) * 3000


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[]", "the corpus is empty"),
        ('[{"user": "a", "text": "b"}', "after element 1: neither a comma nor the closing bracket"),
        ('[{"user": "a", "text": "b"},]', "element 2: not a JSON object"),
        (f'[{{"user": "a", "text": "b"}}, "{SECRET}"]', "element 2: not a JSON object"),
        (f'[{{"user": "a", "text": "{SECRET}', "element 1: not a JSON object"),
        (f'[{{"user": "a", "text": "b"}}] {SECRET}', "data after the closing bracket"),
        (
            f'{{"data": [{{"user": "a",\n "text": "{SECRET}"}}]}}',
            "line 1: not JSON. Each line must be one JSON object.",
        ),
        ('[{"user": "a", "text": ' + "[" * 100_000, "element 1: not a JSON object"),
        ('[{"user": "a", "text": 5}]', "element 1: 'text' is a number. Expected text."),
    ],
)
def test_bad_arrays(content: str, says: str, tmp_path: Path) -> None:
    assert says in refusal(write(tmp_path / "c.json", content))


def test_an_endless_element_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", '[{"user": "a", "text": "' + "x" * 25_000_000 + '"}]')
    assert "element 1: not a JSON object of less than 10,000,000 bytes" in refusal(path)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("ending", ["csv", "jsonl", "json"])
def test_a_byte_order_mark_names_the_encoding(encoding: str, ending: str, tmp_path: Path) -> None:
    rows = [{"user": "jürgen", "text": "grüß 😀"}] * 3
    forms = {
        "csv": "user,text\njürgen,grüß 😀\n" * 1,
        "jsonl": "\n".join(json.dumps(row, ensure_ascii=False) for row in rows[:1]),
        "json": json.dumps(rows[:1], ensure_ascii=False),
    }
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    path = write(tmp_path / f"c.{ending}", mark + forms[ending], encoding)
    federation = load(path)
    assert (list(federation.users), federation.texts) == (["jürgen"], ("grüß 😀",))
    assert load(path, settings={"encoding": "latin-1"}).texts == federation.texts  # the mark decides


def test_other_encodings_are_named_not_guessed(tmp_path: Path) -> None:
    path = write(tmp_path / "c.csv", "user;text\njürgen;schön\n", "cp1252")
    assert "line 2: not UTF-8 (at byte 2). Name its encoding, for example --data-set encoding=cp1252" in refusal(path)
    federation = load(path, settings={"encoding": "Windows-1252"})
    assert (list(federation.users), federation.texts) == (["jürgen"], ("schön",))
    assert federation.fingerprint != load(path, settings={"encoding": "latin-1"}).fingerprint
    message = refusal(path, SettingsError, settings={"encoding": "cp1525"})
    assert "encoding: no encoding 'cp1525'. Use one that Python knows, like utf-8, utf-16, latin-1 or cp1252" in message
    assert "no encoding 'hex'" in refusal(path, SettingsError, settings={"encoding": "hex"})  # not a text encoding
    path = write(tmp_path / "c.csv", "user,text\na,b\n" * 2 + "a,\u20ac\n", "utf-8")
    assert "line 5: not ascii. Name the right encoding" in refusal(path, settings={"encoding": "ascii"})


def test_utf16_without_a_mark_is_named(tmp_path: Path) -> None:
    for encoding in ("utf-16-le", "utf-16-be"):
        path = write(tmp_path / "c.csv", "user,text\na,b\n", encoding)
        assert "UTF-16 without a byte order mark. For UTF-16: --data-set encoding=utf-16-le." in refusal(path)
        assert load(path, settings={"encoding": encoding}).texts == ("b",)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("c.xlsx", b"PK\x03\x04", "a spreadsheet. Export it: in Excel, File, Save As, 'CSV UTF-8"),
        ("c.ods", b"", "a spreadsheet. Export it"),
        ("c.csv", b"PK\x03\x04" + b"\0" * 50, "this is a ZIP archive or an Excel workbook. Export it"),
        ("c.csv", b"PAR1", "this is a Parquet file. Rename it so that it ends in .parquet."),
        ("c.csv", gzip.compress(b"user,text\n", mtime=0), "this is a gzip file. Rename it so that it ends in .gz."),
        ("c.jsonl", b"BZh9", "this is a bzip2 file. Unpack it, or compress it with gzip."),
        ("c.csv.gz", gzip.compress(b"PK\x03\x04", mtime=0), "this is a ZIP archive"),
    ],
)
def test_the_format_of_a_binary_file_is_named(name: str, content: bytes, says: str, tmp_path: Path) -> None:
    assert says in refusal(write(tmp_path / name, content))


def test_columns_without_names_and_unused_duplicate_columns_are_ignored(tmp_path: Path) -> None:
    path = write(tmp_path / "c.csv", ",user,text,,\n0,a,b,,\n")
    assert load(path).texts == ("b",)
    assert "Did you mean 'user'? Columns: '', 'user', 'text'" in refusal(
        path, UnknownNameError, columns=Columns(user="usr")
    )
