"""The report on conversations and replies: exact small facts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from corpus_files import load, write_jsonl
from typer.testing import CliRunner

from homespun.cli import app
from homespun.data.corpus_report import inspect_corpus
from homespun.data.dialogue_report import inspect_dialogue
from homespun.data.splits import conversation_parts

ROWS: list[dict[str, Any]] = [
    {"user": "ann", "scene": 1, "text": "How are you?"},
    {"user": "cy", "scene": 2, "text": "Hello there."},
    {"user": "bob", "scene": 1, "text": "Fine."},
    {"user": "ann", "scene": 2, "text": "Hi!"},
    {"user": "bob", "scene": 1, "text": "And you?"},
    {"user": "ann", "scene": 1, "text": " fine. "},
    {"user": "ann", "scene": None, "text": "Anyway."},
]


def report(tmp_path: Path, rows: list[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    found = inspect_dialogue(load(write_jsonl(tmp_path / "c.jsonl", rows), settings=settings))
    assert found is not None
    return found.to_dict()


def test_counts_of_a_small_corpus(tmp_path: Path) -> None:
    found = report(tmp_path, ROWS)
    assert (found["conversations"], found["turns"], found["pairs"], found["speakers"]) == (2, 7, 3, 2)
    assert found["turns_without_prompt"] == {
        "no conversation": 1,
        "first of the conversation": 2,
        "same speaker as before": 1,
    }
    assert found["most_pairs"] == {"ann": 2, "bob": 1}
    assert found["pairs_per_speaker"] == {"min": 1, "10%": 1.1, "median": 1.5, "90%": 1.9, "max": 2, "mean": 1.5}
    assert found["repeated_replies"] == {"count": 2, "share": 0.6667}  # "Fine." and " fine. "
    assert "pairs_beyond_max_words" not in found
    assert found["test_seen_by_example"] == {"reply": None, "prompt and reply": None}  # too few for a test part


def test_pairs_beyond_max_words(tmp_path: Path) -> None:
    found = report(tmp_path, ROWS, max_words=3)  # "How are you?" has four
    assert (found["pairs"], found["pairs_beyond_max_words"]) == (3, 1)
    assert (found["speakers"], found["most_pairs"]) == (1, {"ann": 2})
    none = report(tmp_path, ROWS, max_words=1)
    assert (none["pairs"], none["pairs_beyond_max_words"], none["speakers"]) == (3, 3, 0)


def test_users_that_filters_leave_out_do_not_count(tmp_path: Path) -> None:
    found = report(tmp_path, ROWS, max_users=1)
    assert (found["turns"], found["pairs"], found["turns_without_prompt"]["first of the conversation"]) == (4, 2, 1)


def test_test_pairs_that_were_seen_in_training(tmp_path: Path) -> None:
    """Ten scenes in which bob answers `yes` to a question of the scene, and another ten with the same questions in the
    same order."""
    parts = conversation_parts(20, seed=0)
    tested = [scene for scene in range(20) if parts[scene] == 2]
    trained = {scene % 10 for scene in range(20) if parts[scene] == 0}
    rows = [
        {"user": user, "scene": scene, "text": text}
        for scene in range(20)
        for user, text in [("ann", f"Is it {scene % 10}?"), ("bob", "yes")]
    ]
    found = report(tmp_path, rows)
    share = sum(scene % 10 in trained for scene in tested) / 2
    assert len(tested) == 2
    assert found["test_seen_by_conversation"] == {"reply": 1.0, "prompt and reply": share}
    assert found["test_seen_by_example"]["reply"] == 1.0
    different = [{**row, "text": f"{row['scene']} {row['text']}"} for row in rows]
    assert report(tmp_path, different)["test_seen_by_conversation"] == {"reply": 0.0, "prompt and reply": 0.0}


def test_corpora_without_conversations_or_replies(tmp_path: Path) -> None:
    assert inspect_dialogue(load(write_jsonl(tmp_path / "c.jsonl", [{"user": "a", "text": "x"}]))) is None
    found = report(tmp_path, [{"user": "a", "text": "x", "topic": 1}, {"user": "b", "text": "y", "topic": 2}])
    assert (found["conversations"], found["pairs"], found["speakers"]) == (2, 0, 0)


def test_the_command_shows_it(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", [{**row, "part": row["scene"], "scene": 1} for row in ROWS])
    arguments = ["data", "check", str(path), "--conversation-column", "part"]
    printed = CliRunner().invoke(app, arguments).output
    assert "\npairs                        3\n" in printed and "most pairs                   ann: 2, bob: 1" in printed
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert found["dialogue"]["pairs"] == 3 and found["users"] == 3
    plain = write_jsonl(tmp_path / "plain.jsonl", [{"user": "a", "text": "x"}])
    assert "dialogue" not in json.loads(CliRunner().invoke(app, ["data", "check", str(plain), "--json"]).stdout)


def test_a_report_on_a_corpus_split_by_conversation(tmp_path: Path) -> None:
    rows = [{"user": user, "scene": scene, "text": "x"} for scene in range(20) for user in ("ann", f"guest {scene}")]
    federation = load(write_jsonl(tmp_path / "c.jsonl", rows))
    found = inspect_corpus(federation, split_by="conversation", seed=4)
    assert found.users_without_evaluation == 18 and found.to_dict()["split_by"] == "conversation"
    assert "same part" in found.policy[1]
    assert inspect_corpus(federation).users_without_evaluation == 20  # each guest has one example
    assert "split_by" not in inspect_corpus(federation).to_dict()
