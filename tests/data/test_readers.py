"""Files as federations: exact small facts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from corpus_files import ROWS, load, write_as, write_jsonl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homespun.core.errors import DataError
from homespun.data import Columns, load_federation
from homespun.data.readers import fingerprint
from homespun.data.table import Filters


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv", "parquet"])
def test_every_format_gives_the_same_federation(kind: str, tmp_path: Path) -> None:
    federation = load(write_as(kind, tmp_path, ROWS))
    assert list(federation.users) == ["bo", "al"]
    assert federation.labels == ("a", "b")
    assert federation.contexts == ("home", "work")
    bo = federation.examples(0)
    assert list(bo.texts) == ["hello", "bye"]
    assert bo.labels is not None and bo.contexts is not None and bo.authors is not None
    assert (bo.labels.tolist(), bo.contexts.tolist(), bo.authors.tolist()) == ([1, 0], [1, 0], [0, 0])
    assert federation.examples(1).authors.tolist() == [1]  # type: ignore[union-attr]
    assert federation.group(0) is None
    with pytest.raises(IndexError):
        federation.examples(2)
    with pytest.raises(IndexError):
        federation.examples(-1)


def test_columns_have_the_names_they_are_given(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", [{"who": 7, "said": "hm", "where": "x"}])
    federation = load(path, columns=Columns(user="who", text="said", label="where"))
    assert (list(federation.users), federation.labels, federation.contexts) == (["7"], ("x",), ())
    assert federation.examples(0).contexts is None


def test_label_may_be_the_context(tmp_path: Path) -> None:
    federation = load(write_jsonl(tmp_path / "c.jsonl", ROWS), columns=Columns(label="context"))
    assert federation.labels == federation.contexts == ("home", "work")


def test_numeric_values_become_the_text_the_file_has(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(
        '{"user": 12345678901234567890123, "text": "a", "label": 1.50}\n{"user": 1, "text": "a", "label": true}\n'
    )
    federation = load(path)
    assert list(federation.users) == ["12345678901234567890123", "1"]
    assert federation.labels == ("1.50", "true")


def test_any_non_empty_user_id_is_legal(tmp_path: Path) -> None:
    users = ["../../x", "x" * 300, "nul\0nul", "Anna", "anna", " ", "ä", "\u202e", "'; drop table users"]
    federation = load(write_jsonl(tmp_path / "c.jsonl", [{"user": user, "text": "t"} for user in users]))
    assert list(federation.users) == users
    assert [federation.users.index(user) for user in users] == list(range(len(users)))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
            st.text(st.characters(exclude_categories=["Cs"])),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_what_was_written_is_read(tmp_path: Path, pairs: list[tuple[str, str]]) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", [{"user": user, "text": text} for user, text in pairs])
    kept = [(user, text) for user, text in pairs if text.strip()]
    if not kept:
        with pytest.raises(DataError, match="no user is left"):
            load_federation(path)
        return
    federation = load(path)
    read = [(name, list(federation.examples(at).texts)) for at, name in enumerate(federation.users)]
    assert read == [
        (user, [t for u, t in kept if u == user]) for user in dict.fromkeys(u for u, _ in pairs) if user in dict(kept)
    ]


def test_fingerprint_changes_with_content_columns_and_filters(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", ROWS)
    prints = [
        load(path).fingerprint,
        load(path, columns=Columns(label="context")).fingerprint,
        load(path, settings={"max_users": 1}).fingerprint,
    ]
    assert load(path).fingerprint == prints[0]
    write_jsonl(path, [*ROWS, ROWS[0]])
    assert len({*prints, load(path).fingerprint}) == 4


def test_a_younger_filter_changes_the_fingerprint_only_where_it_is_used() -> None:
    before = "71c4d5039bb654cc099dc78162bbd86e2dce344c2b7334a6b6fc72f43db53c33"  # there was no such filter
    assert fingerprint("content", Columns(), Filters(min_examples=2)) == before
    assert fingerprint("content", Columns(), Filters(min_examples=2, min_context_examples=1)) != before


def test_filters_leave_out_and_count(tmp_path: Path) -> None:
    rows = [
        {"user": user, "text": "t", "label": label} for user, label in ["az", "ax", "bx", "by", "cz", "cx", "cx", "dw"]
    ]
    rows.append({"user": "e", "text": " \n", "label": "x"})
    path = write_jsonl(tmp_path / "c.jsonl", rows)
    # x occurs 4 times, z twice; w and y once: the tie for the third place goes by name
    three = load(path, settings={"most_frequent_labels": 3})
    assert three.labels == ("w", "x", "z")
    assert list(three.users) == ["a", "b", "c", "d"]
    assert three.left_out.examples == {"blank text": 1, "a rarer label": 1}
    assert three.left_out.users == {"no usable example": 1}
    some = load(path, settings={"most_frequent_labels": "2", "min_examples": 2, "max_examples": 2})
    assert list(some.users) == ["a"]
    assert some.left_out.users == {
        "no usable example": 2,
        "fewer than 2 examples": 1,
        "more than 2 examples": 1,
    }
    assert list(load(path, settings={"max_users": 2}).users) == ["a", "b"]
    with pytest.raises(DataError, match=r"no user is left\. Left out: 2 users with no usable example"):
        load(path, settings={"min_examples": 99, "most_frequent_labels": 1})


def test_examples_of_rare_contexts_are_left_out_before_users_are_counted(tmp_path: Path) -> None:
    said = ["ax", "ax", "az", "bx", "by", "by", "cz", "dy"]  # x and y 3 times, z twice
    rows = [{"user": user, "text": "t", "context": context, "label": context} for user, context in said]
    path = write_jsonl(tmp_path / "c.jsonl", [*rows, {"user": "e", "text": " ", "context": "z", "label": "z"}])
    three = load(path, settings={"min_context_examples": 3})
    assert (list(three.users), three.contexts) == (["a", "b", "d"], ("x", "y"))
    assert [len(three.examples(user)) for user in range(3)] == [2, 3, 1]
    assert three.left_out.examples == {"blank text": 1, "a context of fewer than 3": 2}
    assert three.left_out.users == {"no usable example": 2}
    # a had three examples, but one of them in z
    both = load(path, settings={"min_context_examples": 3, "min_examples": 3})
    assert (list(both.users), both.contexts) == (["b"], ("x", "y"))
    assert both.left_out.users == {"no usable example": 2, "fewer than 3 examples": 2}
    assert load(path, settings={"min_context_examples": 2}).contexts == ("x", "y", "z")
    # contexts are counted among the examples whose label is kept
    labelled = load(path, settings={"most_frequent_labels": 1, "min_context_examples": 3})
    assert labelled.left_out.examples == {"blank text": 1, "a rarer label": 5}
    with pytest.raises(DataError, match="8 examples with a context of fewer than 4"):
        load(path, settings={"min_context_examples": 4})


def test_blank_lines_byte_order_marks_and_windows_endings_do_no_harm(tmp_path: Path) -> None:
    line = b'{"user": "a", "text": "fine"}\n'
    path = tmp_path / "c.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + line.replace(b"\n", b"\r\n") + b"\r\n\n" + line.rstrip())
    assert len(load(path).examples(0)) == 2


def test_csv_cells_may_hold_commas_quotes_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text('user,text\r\na,"one, ""two""\nthree"\r\n', newline="")
    assert list(load(path).examples(0).texts) == ['one, "two"\nthree']


def test_fifty_thousand_lines_take_seconds(tmp_path: Path) -> None:
    rows = [{"user": f"u{i % 1000}", "text": "some words", "label": f"l{i % 7}"} for i in range(50_000)]
    path = write_jsonl(tmp_path / "c.jsonl", rows)
    start = time.perf_counter()
    assert len(load(path).users) == 1000
    assert time.perf_counter() - start < 5  # about 0.5 s on one core
