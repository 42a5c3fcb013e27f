"""No message shows the content of a corpus: no row, cell or line, and only names that are certainly column names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from corpus_files import SECRET, refusal, write_jsonl

from homespun.core.errors import DataError, UnknownNameError
from homespun.data import Columns, load_federation
from homespun.data.columns import look_like_names
from homespun.personalization.user_examples import label_indices

HIDDEN = "whose names do not look like column names and are not shown. Is the header line missing?"


@pytest.mark.parametrize(
    "content",
    [
        f"anna,{SECRET},yes\nbo,hello you,no\n",
        f"anna;{SECRET};yes\nbo;hello you;no\n",
        f"17,{SECRET}\n18,hello\n",
        "anna,dearest,yes\nbo,hello,yes\nanna,well,no\n",  # all of them could be names, but anna and yes come again
        "w" * 41 + ",anna\n1,2\n",
    ],
)
def test_a_table_without_a_header_shows_nothing_of_its_first_line(content: str, tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text(content)
    message = refusal(path, UnknownNameError)
    assert HIDDEN in message and "Did you mean" not in message
    assert not any(cell in message for cell in ("anna", "dearest", "'yes'", "'17'", "www"))


def test_keys_that_are_content_are_not_shown(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", [{SECRET: "a", "said": "b"}])
    assert f"no column 'user', but 2 {HIDDEN}" in refusal(path, UnknownNameError)


def test_names_that_are_names_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text(",author,body,subreddit\n0,anna,hello,pics\n")
    message = refusal(path, UnknownNameError)
    assert "no column 'text'. Columns: '', 'author', 'body', 'subreddit'." in message


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["user", "text_2", "größe", "created-at"], True),
        (["", "user"], True),
        (["user", "good night"], False),
        (["user", "3"], False),
        (["user", "anna@example.org"], False),
        (["u" * 40], True),
        (["u" * 41], False),
    ],
)
def test_what_looks_like_a_name(names: list[str], shown: bool) -> None:
    assert look_like_names(names) is shown


@pytest.mark.parametrize(
    "source",
    [
        f"user,text\nanna,{SECRET}\n",
        json.dumps([{"user": "a", "text": SECRET}] * 40),
        f"{SECRET}\0.csv",
        SECRET + "ü" * 120,
        f"{SECRET}/" * 200,
    ],
)
def test_content_in_place_of_a_name_is_not_shown(source: str) -> None:
    with pytest.raises(UnknownNameError, match=r"a text of [\d,]+ characters, not a name\.") as caught:
        load_federation(source)
    assert SECRET not in str(caught.value)


def test_a_text_column_taken_for_labels_is_not_shown(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", [{"user": "a", "text": SECRET}])
    labels = load_federation(path, columns=Columns(label="text")).labels
    with pytest.raises(DataError) as caught:
        label_indices([*labels, *labels, "yes", "maybe"], ["no", "yes"])
    said = "labels: 2 of them are unknown to the run. They do not look like names and are not shown."
    assert str(caught.value) == said
    with pytest.raises(DataError, match=r"the run knows no label 'yess'\. Did you mean 'yes'"):
        label_indices(["yess"], ["no", "yes"])
