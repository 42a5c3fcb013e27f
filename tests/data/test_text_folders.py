"""A folder of texts as a federation: a user for each file, or for each folder in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpus_files import SECRET, load, refusal

from homespun.core.errors import DataError, SettingsError
from homespun.data import Columns


def write(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return folder


def test_a_user_for_each_file_and_for_each_folder(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "letters",
        bo_txt="Hello there. Are you well?",
        anna__2024_txt="The second letter.",
        anna__2023_md="# First\n\nThe *first* letter.",
        anna__more__late_txt="The last one.",
        _hidden_txt=SECRET,
        notes_pdf=SECRET,
    )
    federation = load(folder)
    assert list(federation.users) == ["anna", "bo"]
    assert list(federation.examples(0).texts) == ["First", "The first letter.", "The second letter.", "The last one."]
    assert list(federation.examples(1).texts) == ["Hello there.", "Are you well?"]
    assert (federation.name, federation.place, federation.labels) == ("letters", folder, ())


def test_the_fingerprint_is_that_of_names_and_bytes(tmp_path: Path) -> None:
    folder = write(tmp_path / "letters", a_txt="One.", b_txt="Two.")
    before = load(folder).fingerprint
    write(folder, notes_csv="something else")
    assert load(folder).fingerprint == before
    assert load(folder, settings={"max_users": 1}).fingerprint != before
    (folder / "b.txt").rename(folder / "c.txt")
    assert load(folder).fingerprint != before
    (folder / "c.txt").rename(folder / "b.txt")
    assert load(folder).fingerprint == before
    write(folder, b_txt="Three.")
    assert load(folder).fingerprint != before


def test_encodings_are_those_of_other_text_files(tmp_path: Path) -> None:
    folder = tmp_path / "letters"
    folder.mkdir()
    (folder / "a.txt").write_text("Grüße.", encoding="utf-16")
    assert load(folder).texts == ("Grüße.",)
    (folder / "b.txt").write_text("Ende.\nGrüße.", encoding="cp1252")
    message = refusal(folder)
    assert f"{folder}: b.txt: line 2 is not UTF-8. Name its encoding, for example --data-set encoding=cp1252" in message
    assert load(folder, settings={"encoding": "cp1252"}).texts == ("Grüße.", "Ende.", "Grüße.")


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "letters"
    folder.mkdir()
    assert "a folder without .txt or .md files" in refusal(folder)
    write(folder, posts_csv="user,text\n", more_csv="user,text\n")
    assert "a folder without .txt or .md files (it has 2 .csv). Name one of its files." in refusal(folder)
    write(folder, a_txt=f"{SECRET}.", b_txt=" \n")
    assert load(folder).left_out.users == {"no usable example": 1}
    (folder / "c.txt").write_bytes(b"PK\x03\x04" + SECRET.encode())
    (folder / "d.txt").write_bytes(b"\xff" + SECRET.encode())
    message = refusal(folder)
    assert (
        "2 faults" in message and "c.txt: this is a ZIP archive" in message and "d.txt: line 1 is not UTF-8" in message
    )
    with pytest.raises(SettingsError, match="a folder of texts has no columns"):
        load(folder, columns=Columns(text="body"))
    with pytest.raises(DataError, match="name the folder with their text files"):
        load(folder / "a.txt")


def test_the_limit_counts_all_files(tmp_path: Path) -> None:
    folder = write(tmp_path / "letters", a_txt="One. " * 50, b_txt="Two. " * 50)
    assert "more than 400 bytes once unpacked" in refusal(folder, settings={"max_bytes": 400})
    assert len(load(folder, settings={"max_bytes": 20_000}).texts) == 100
