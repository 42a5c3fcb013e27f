"""Corpora with conversations: which rows reply to which, in every format, and the view of a corpus as replies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
from corpus_files import load, refusal, write_as, write_jsonl
from hypothesis import given
from hypothesis import strategies as st

import homespun
from homespun.core.errors import DataError, SettingsError, UnknownNameError
from homespun.data import Columns, load_federation
from homespun.data.conversations import previous_turns
from homespun.data.dialogue import as_read, replies
from homespun.data.federation import concatenate
from homespun.data.readers import fingerprint
from homespun.data.splits import PooledFederation, withhold
from homespun.data.table import Filters, TableFederation

# Two scenes interleave: 1 is ann, bob, bob, ann; 2 is cy, ann.
ROWS: list[dict[str, Any]] = [
    {"user": "ann", "scene": 1, "text": "How are you?"},
    {"user": "cy", "scene": 2, "text": "Hello there."},
    {"user": "bob", "scene": 1, "text": "Fine."},
    {"user": "ann", "scene": 2, "text": "Hi!"},
    {"user": "bob", "scene": 1, "text": "And you?"},
    {"user": "ann", "scene": 1, "text": "Fine."},
]
PROMPTS = {"ann": [None, "Hello there.", "And you?"], "cy": [None], "bob": ["How are you?", None]}
CONVERSATIONS = {"ann": [0, 1, 0], "cy": [1], "bob": [0, 0]}
FORMS = {"list": lambda rows: rows, "frame": pandas.DataFrame, "arrow table": pyarrow.Table.from_pylist}


def prompts_of(federation: TableFederation) -> dict[str, Any]:
    return {name: _listed(federation.examples(at).prompts) for at, name in enumerate(federation.users)}


def conversations_of(federation: TableFederation) -> dict[str, Any]:
    return {name: _listed(federation.examples(at).conversations) for at, name in enumerate(federation.users)}


def _listed(column: Any) -> Any:
    return None if column is None else list(column)


def table(rows: Any, columns: Columns | None = None, **settings: Any) -> TableFederation:
    federation = load_federation(rows, columns=columns or Columns(), settings=settings)
    assert isinstance(federation, TableFederation)
    return federation


# Reading


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv", "parquet"])
def test_every_format_gives_the_same_prompts(kind: str, tmp_path: Path) -> None:
    federation = load(write_as(kind, tmp_path, ROWS))
    assert prompts_of(federation) == PROMPTS
    assert conversations_of(federation) == CONVERSATIONS


@pytest.mark.parametrize("form", FORMS)
def test_every_form_in_memory_gives_the_same_prompts(form: str) -> None:
    federation = table(FORMS[form](ROWS))
    assert (prompts_of(federation), conversations_of(federation)) == (PROMPTS, CONVERSATIONS)
    assert federation.fingerprint == table(ROWS).fingerprint


def slow_previous_turns(conversation_of: list[int], speaker_of: list[int]) -> list[int]:
    last: dict[int, int] = {}
    found = []
    for row, (conversation, speaker) in enumerate(zip(conversation_of, speaker_of, strict=True)):
        before = last.get(conversation, -1)
        found.append(before if conversation >= 0 and before >= 0 and speaker_of[before] != speaker else -1)
        last[conversation] = row
    return found


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 2))))
def test_previous_turns_are_those_of_the_slow_loop(rows: list[tuple[int, int]]) -> None:
    conversation_of, speaker_of = [row[0] for row in rows], [row[1] for row in rows]
    fast = previous_turns(np.array(conversation_of, dtype=np.int64), np.array(speaker_of, dtype=np.int64))
    assert fast.tolist() == slow_previous_turns(conversation_of, speaker_of)


def test_a_blank_text_is_no_turn() -> None:
    rows = [
        {"user": "ann", "text": "How are you?", "scene": 1},
        {"user": "cy", "text": " ", "scene": 1},
        {"user": "bob", "text": "Fine.", "scene": 1},
    ]
    assert prompts_of(table(rows))["bob"] == ["How are you?"]


def test_prompts_come_from_users_that_filters_leave_out() -> None:
    federation = table(ROWS, min_examples=2, max_users=1)
    assert prompts_of(federation) == {"ann": [None, "Hello there.", "And you?"]}
    assert conversations_of(federation) == {"ann": [0, 1, 0]}  # numbered before filters


def numbers(rows: list[dict[str, Any]], conversation: str = "") -> list[int] | None:
    """The conversation of each row; all rows are one user's."""
    federation = table(
        [{"user": "ann", "text": "hm", **row} for row in rows], columns=Columns(conversation=conversation)
    )
    return conversations_of(federation)["ann"]


def test_automatic_columns() -> None:
    assert numbers([{"conversation": 1, "scene": 1}, {"conversation": 1, "scene": 2}]) == [0, 0]
    assert numbers([{"scene": 1, "episode": 1}, {"scene": 1, "episode": 2}, {"scene": 1, "episode": 1}]) == [0, 1, 0]
    assert numbers([{"topic": 1, "context": "a"}, {"topic": 1, "context": "b"}]) == [0, 1]
    assert numbers([{"thread": "x"}, {"thread": "y"}, {"thread": "x"}]) == [0, 1, 0]
    assert numbers([{"season": 1, "context": "a"}, {"season": 2, "context": "a"}]) is None
    assert numbers([{}, {}]) is None
    assert numbers([{"conversation": None, "scene": 1}, {"conversation": None, "scene": 2}]) == [0, 1]  # it has none


def test_rows_that_lack_a_column_are_in_no_conversation() -> None:
    assert numbers([{"scene": 1}, {}, {"scene": None}, {"scene": ""}, {"scene": 1}]) == [0, -1, -1, -1, 0]
    # a column that first occurs in a late row counts for all
    late = [{"episode": 1}, {"episode": 1, "scene": 1}, {"episode": 1, "scene": 2}, {"episode": 1, "scene": 1}]
    assert numbers(late) == [-1, 0, 1, 0]
    assert numbers([{"scene": 1, "thread": [1]}, {"scene": 1, "thread": 5}, {"scene": 1, "thread": 5}]) == [-1, 0, 0]
    assert numbers([{"scene": 1, "thread": [1]}, {"scene": 1, "thread": {}}]) == [0, 0]  # no thread is named


def test_rows_without_a_conversation_have_no_prompt() -> None:
    rows = [{"user": user, "text": user, "scene": scene} for user, scene in [("a", None), ("b", None), ("c", 1)]]
    assert prompts_of(table(rows)) == {"a": [None], "b": [None], "c": [None]}


def test_columns_may_be_chosen(tmp_path: Path) -> None:
    rows = [{"part": 1, "scene": 1}, {"part": 2, "scene": 1}, {"part": 1, "scene": 2}, {"part": 1, "scene": 1}]
    assert numbers(rows, "part") == [0, 1, 0, 0]
    assert numbers(rows, " part , scene,") == [0, 1, 2, 0]
    assert numbers([{"part": 1}, {"part": None}, {"part": ""}, {"part": 1}], "part") == [0, -1, -1, 0]
    path = write_as("csv", tmp_path, [{"user": "a", "text": "b", "place": "c"}])
    message = refusal(path, UnknownNameError, columns=Columns(conversation="plce"))
    assert "no column 'plce'. Did you mean 'place'?" in message
    message = refusal(path, UnknownNameError, columns=Columns(conversation="place,act"))
    assert "no column 'act'" in message and "'place'" in message


def test_a_chosen_column_must_name_conversations(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", [{"user": "a", "text": "b", "part": [1]}])
    assert "line 1: 'part' is a list" in refusal(path, columns=Columns(conversation="part"))
    write_jsonl(path, [{"user": "a", "text": "b", "part": None}])
    assert "no row names a conversation" in refusal(path, columns=Columns(conversation="part"))


def test_an_unreadable_or_repeated_automatic_column_is_not_read(tmp_path: Path) -> None:
    import pyarrow.parquet

    rows = {"user": ["a", "b"], "text": ["x", "y"], "thread": [[1], [1]]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "c.parquet")
    assert prompts_of(load(tmp_path / "c.parquet")) == {"a": None, "b": None}
    repeated = pandas.DataFrame([["a", "x", 1, 1], ["b", "y", 1, 1]], columns=["user", "text", "scene", "scene"])
    assert prompts_of(table(repeated)) == {"a": None, "b": None}


def test_fingerprints_change_only_with_chosen_columns() -> None:
    before = "71c4d5039bb654cc099dc78162bbd86e2dce344c2b7334a6b6fc72f43db53c33"  # there were no conversations
    assert fingerprint("content", Columns(), Filters(min_examples=2)) == before
    assert fingerprint("content", Columns(conversation="scene"), Filters(min_examples=2)) != before
    assert fingerprint("content", Columns(), Filters(min_examples=2, max_words=20)) != before
    without = [{name: cell for name, cell in row.items() if name != "scene"} for row in ROWS]
    assert table(ROWS).fingerprint == table(without).fingerprint  # as before there were conversations
    chosen = Columns(conversation="scene")
    other = [{**row, "scene": 1} for row in ROWS]
    assert table(ROWS, chosen).fingerprint != table(other, chosen).fingerprint


# Examples


def test_examples_are_taken_and_concatenated_with_their_prompts() -> None:
    federation = table(ROWS)
    ann, bob = federation.examples(0), federation.examples(2)
    taken = ann.take([2, 0])
    assert taken.prompts == ["And you?", None] and taken.conversations.tolist() == [0, 0]  # type: ignore[union-attr]
    both = concatenate([bob, ann])
    assert both.prompts == ["How are you?", None, None, "Hello there.", "And you?"]
    assert both.conversations.tolist() == [0, 0, 0, 1, 0]  # type: ignore[union-attr]
    plain = table([{"user": "dee", "text": "x"}]).examples(0)
    assert plain.prompts is None and plain.conversations is None
    assert concatenate([ann, plain]).prompts is None and concatenate([ann, plain]).conversations is None


def test_views_keep_prompts() -> None:
    federation = table(ROWS)
    pooled = PooledFederation(federation).examples(0)
    assert list(pooled.prompts or ()) == [None, "Hello there.", "And you?", None, "How are you?", None]
    rest, _ = withhold(federation, count=1, seed=0, fold=0)
    kept = [_listed(rest.examples(at).prompts) for at in range(2)]
    assert kept == [PROMPTS[name] for name in rest.users]


# Replies


def test_replies_of_a_corpus() -> None:
    corpus = table(ROWS)
    view = replies(corpus)
    assert list(view.users) == ["ann", "bob"]
    assert (view.texts, view.prompts) == (("Hi!", "Fine.", "Fine."), ("Hello there.", "And you?", "How are you?"))
    assert conversations_of(view) == {"ann": [1, 0], "bob": [0]}
    assert view.left_out.users == {"no reply": 1} and view.left_out.examples == {"no prompt": 3}
    assert (view.name, view.place, view.content) == (corpus.name, corpus.place, corpus.content)
    assert view.examples(1).authors.tolist() == [1]  # type: ignore[union-attr]
    assert as_read(corpus, "texts") is corpus and as_read(corpus, "replies").fingerprint == view.fingerprint


def test_replies_keep_labels_and_contexts() -> None:
    rows = [{**row, "label": row["user"], "context": "a" if row["scene"] == 1 else "b"} for row in ROWS]
    view = replies(table(rows))
    assert (view.labels, view.contexts) == (("ann", "bob", "cy"), ("a", "b"))
    ann = view.examples(0)
    assert (ann.labels.tolist(), ann.contexts.tolist()) == ([0, 0], [1, 0])  # type: ignore[union-attr]


def test_pairs_with_too_many_words_are_left_out() -> None:
    view = replies(table(ROWS, max_words=3))  # "How are you?" has four: three words and a sign
    assert list(view.users) == ["ann"] and view.prompts == ("Hello there.", "And you?")
    assert view.left_out.users == {"no reply": 1, "no reply of at most 3 words": 1}
    assert view.left_out.examples == {
        "no prompt": 3,
        "more than 3 words in the prompt or the reply": 1,
    }
    assert replies(table(ROWS, max_words=4)).texts == replies(table(ROWS)).texts
    with pytest.raises(DataError, match=r"no user has a reply.*3 examples with more than 1 words"):
        replies(table(ROWS, max_words=1))


def test_fingerprints_of_replies_cover_conversations() -> None:
    prints = [
        table(ROWS).fingerprint,
        replies(table(ROWS)).fingerprint,
        replies(table(ROWS, max_words=9)).fingerprint,
        replies(table([{**row, "scene": 1} for row in ROWS])).fingerprint,
    ]
    assert len(set(prints)) == 4
    assert replies(table(ROWS)).fingerprint == prints[1]


def test_replies_of_a_subset() -> None:
    participants, _ = withhold(table(ROWS), count=1, seed=0, fold=0)
    view = replies(participants)
    assert {*view.users} <= {*participants.users} and view.content == table(ROWS).content


def test_a_corpus_without_conversations_has_no_replies() -> None:
    with pytest.raises(DataError) as caught:
        replies(table([{"user": "a", "text": "x", "place": 1}, {"user": "b", "text": "y", "place": 1}]))
    assert "--conversation-column" in str(caught.value) and "Columns: 'user', 'text', 'place'." in str(caught.value)
    with pytest.raises(DataError) as caught:
        replies(table([{"user": "a", "text": "x", "I live at 5": 1}]))
    assert "--conversation-column" in str(caught.value) and "I live" not in str(caught.value)
    with pytest.raises(DataError, match="no conversations"):
        replies(homespun.load("dialects", users=3))


def test_a_corpus_without_replies_is_rejected() -> None:
    with pytest.raises(DataError, match=r"no user has a reply.*2 users with no reply, 2 examples with no prompt"):
        replies(table([{"user": "a", "text": "x", "scene": 1}, {"user": "b", "text": "y", "scene": 2}]))


def test_max_words_needs_conversations(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", [{"user": "a", "text": "x", "place": 1}])
    message = refusal(path, settings={"max_words": 20})
    assert "max_words needs conversations" in message and "--conversation-column" in message and "'place'" in message
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "ann.txt").write_text("Hello.")
    with pytest.raises(SettingsError, match="folder of texts has no columns"):
        load_federation(tmp_path / "folder", columns=Columns(conversation="scene"))
    with pytest.raises(SettingsError, match="folder of texts has no conversations"):
        load_federation(tmp_path / "folder", settings={"max_words": 20})
