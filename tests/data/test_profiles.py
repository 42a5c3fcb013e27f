"""Profiles of users: which value counts, how values are numbered, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus_files import load, refusal, write_as, write_jsonl
from typer.testing import CliRunner

from homespun.cli import app
from homespun.core.errors import SettingsError, UnknownNameError
from homespun.data import Columns, load_federation
from homespun.data.dialogue import replies
from homespun.data.profiles import inspect_profiles
from homespun.data.splits import pool_users, select_part, withhold

# ann: two of three rows say f; bob: the first of two values; cy: a row without one; dan: nothing at all
ROWS: list[dict[str, Any]] = [
    {"user": "ann", "text": "hello", "scene": 1, "gender": "f", "age": "30"},
    {"user": "bob", "text": "hi", "scene": 1, "gender": "m", "age": "8"},
    {"user": "ann", "text": "bye", "scene": 1, "gender": "x", "age": "30"},
    {"user": "bob", "text": "so long", "scene": 1, "gender": "f", "age": " 8 "},
    {"user": "ann", "text": "well", "scene": 2, "gender": "f", "age": "30"},
    {"user": "cy", "text": "yes", "scene": 2, "gender": "", "age": "30"},
    {"user": "dan", "text": "no", "scene": 2, "gender": " ", "age": ""},
    {"user": "cy", "text": "yes", "scene": 2, "gender": "m", "age": "30"},
]
BOTH = Columns(profile="gender, age")


def numbers(federation: Any) -> list[list[int]]:
    return [federation.examples(user).profiles.tolist()[0] for user in range(len(federation.users))]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "rows", "frame"])
def test_the_most_frequent_value_counts(kind: str, tmp_path: Path) -> None:
    if kind == "frame":
        source: Any = pytest.importorskip("pandas").DataFrame(ROWS)
    else:
        source = ROWS if kind == "rows" else write_as(kind, tmp_path, ROWS)
    federation: Any = load_federation(source, columns=BOTH)
    profiles = federation.profiles
    assert profiles.columns == ("gender", "age")
    assert profiles.values == (("f", "m"), ("30", "8"))  # sorted; x was never the most frequent
    assert profiles.sizes == (3, 3)
    assert numbers(federation) == [[1, 1], [2, 2], [2, 1], [0, 0]]
    assert federation.examples(0).profiles.shape == (3, 2)
    assert profiles.varies.tolist() == [[True, False], [True, False], [False, False], [False, False]]
    assert [profiles.named(row) for row in numbers(federation)[1::2]] == [
        {"gender": "m", "age": "8"},
        {"gender": None, "age": None},
    ]


def test_numbers_of_a_profile() -> None:
    profiles = load_federation(ROWS, columns=BOTH).profiles  # type: ignore[attr-defined]
    assert profiles.numbers({"age": "8", "gender": "f"}).tolist() == [1, 2]
    assert profiles.numbers({"gender": "x", "age": None}).tolist() == [0, 0]  # no user has x
    assert profiles.numbers({}).tolist() == [0, 0]


def test_cells_that_are_not_text() -> None:
    rows = [{"user": str(place), "text": "x", "kind": kind} for place, kind in enumerate([30, True, None, 2.5])]
    federation: Any = load_federation(rows, columns=Columns(profile="kind"))
    assert federation.profiles.values == (("2.5", "30", "true"),)
    assert numbers(federation) == [[2], [3], [0], [1]]


def test_only_values_of_kept_users_are_listed() -> None:
    federation: Any = load_federation(ROWS, columns=BOTH, settings={"min_examples": 2, "max_users": 1})
    assert list(federation.users) == ["ann"] and federation.profiles.values == (("f",), ("30",))


def test_views_keep_the_profiles() -> None:
    federation: Any = load_federation(ROWS, columns=BOTH)
    answered = replies(federation)
    assert list(answered.users) == ["ann", "bob", "cy", "dan"] and numbers(answered) == numbers(federation)
    dialogue: Any = load_federation(ROWS[:2] + ROWS[5:], columns=BOTH)
    assert list(replies(dialogue).users) == ["bob", "cy", "dan"]  # ann only asks
    assert numbers(replies(dialogue)) == numbers(dialogue)[1:] == [[2, 2], [2, 1], [0, 0]]
    some, others = withhold(federation, count=2, seed=3)
    for part in (some, others):
        assert part.profiles is not None and part.profiles.number_of.tolist() == numbers(part)
        assert numbers(part) == [numbers(federation)[list(federation.users).index(user)] for user in part.users]
    pooled = pool_users(select_part(federation, "train", seed=0)).examples(0)
    assert pooled.profiles is not None and pooled.authors is not None
    assert pooled.profiles.tolist() == np.array(numbers(federation))[pooled.authors].tolist()


def test_without_chosen_columns_nothing_changes(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", ROWS)
    plain, profiled = load(path), load(path, columns=BOTH)
    assert plain.profiles is None and plain.examples(0).profiles is None
    assert Columns().identity() == {"user": "user", "context": "context", "text": "text", "label": "label"}
    assert len({plain.fingerprint, profiled.fingerprint, load(path, columns=Columns(profile="age")).fingerprint}) == 3
    assert replies(plain).fingerprint != replies(profiled).fingerprint
    other = [{**row, "age": "31"} for row in ROWS]
    assert load_federation(other).fingerprint == load_federation(ROWS).fingerprint  # of rows, a column not read
    assert load_federation(other, columns=BOTH).fingerprint != load_federation(ROWS, columns=BOTH).fingerprint


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_column_may_also_name_conversations(kind: str, tmp_path: Path) -> None:
    rows = [{"user": user, "text": "x", "topic": topic} for topic in ("sea", "sky") for user in ("ann", "bob")]
    federation = load(write_as(kind, tmp_path, rows), columns=Columns(profile="topic"))
    assert federation.profiles is not None and federation.profiles.values == (("sea",),)
    assert federation.conversation_of is not None and federation.conversation_of.tolist() == [0, 1, 0, 1]


def test_what_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", ROWS)
    message = refusal(path, UnknownNameError, columns=Columns(profile="gendr,age"))
    assert "no column 'gendr'. Did you mean 'gender'? Columns: 'user', 'text', 'scene', 'gender', 'age'." in message
    assert "'text' is the column of the text" in refusal(path, SettingsError, columns=Columns(profile="age,text"))
    assert "'user' is the column of the user" in refusal(path, SettingsError, columns=Columns(profile="user"))
    listed = write_jsonl(tmp_path / "l.jsonl", [*ROWS, {**ROWS[0], "gender": ["f"]}])
    assert "line 9: 'gender' is a list. Expected text or a number." in refusal(listed, columns=BOTH)
    with pytest.raises(SettingsError, match="a built-in corpus has its own columns"):
        load_federation("dialects", columns=BOTH)


def test_what_a_check_says(tmp_path: Path) -> None:
    found = inspect_profiles(load_federation(ROWS, columns=BOTH))
    assert (found["gender"].users, found["gender"].unknown) == ({"m": 2, "f": 1}, 1)
    assert (found["gender"].several, found["gender"].single) == (2, 1)
    assert str(found["gender"]) == (
        "values: 2 (m: 2, f: 1); users with unknown value: 1; users with several: 2 (the most frequent counts); "
        "values of one user only: 1 (they identify the user)"
    )
    assert inspect_profiles(load_federation(ROWS)) == {}
    many = [{"user": str(place), "text": "x", "age": place // 2} for place in range(24)]
    (age,) = inspect_profiles(load_federation(many, columns=Columns(profile="age"))).values()
    assert (age.values, len(age.users), age.single, age.unknown) == (12, 10, 0, 0) and str(age).endswith(": 2, ...)")


def test_commands_show_profiles(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", ROWS)
    arguments = ["check", str(path), "--profile-column", "gender,age"]
    printed = CliRunner().invoke(app, ["data", *arguments]).output
    assert "\nprofile: age                 values: 2 (30: 2, 8: 1); users with unknown value: 1; values of" in printed
    found = json.loads(CliRunner().invoke(app, ["data", *arguments, "--json"]).stdout)
    assert found["profile"]["age"] == {"values": 2, "users": {"30": 2, "8": 1}, "unknown": 1, "several": 0, "single": 1}
    assert "profile" not in json.loads(CliRunner().invoke(app, ["data", "check", str(path), "--json"]).stdout)
    shown = CliRunner().invoke(app, ["data", "show", str(path), "--users", "4", *arguments[2:]]).output
    assert "ann (3 examples, gender f, age 30)" in shown and "dan (1 examples, gender unknown, age unknown)" in shown
