"""The report on a corpus."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from homespun.data import load_federation
from homespun.data.corpus_report import OWN_PARTS, USABLE, inspect_corpus

FEW = "A user with fewer than 5 examples trains on all of them and is not evaluated (split: 0.8, 0.1, 0.1)."


def test_a_small_corpus_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    rows = [("a", "x", "home")] * 3 + [("a", "y", "work")] * 2 + [("b", "y", "home")]
    lines = [{"user": user, "text": "ab c", "label": label, "context": context} for user, label, context in rows]
    lines.append({"user": "nobody", "text": "  ", "label": "x", "context": "home"})
    path.write_text("\n".join(json.dumps(line) for line in lines))
    report = inspect_corpus(load_federation(path))
    assert (report.users, report.inspected_users, report.sampled, report.examples) == (2, 2, False, 6)
    assert (report.labels, report.contexts) == (2, 2)
    assert report.examples_per_user == {
        "min": 1.0,
        "10%": pytest.approx(1.4),
        "median": 3.0,
        "90%": pytest.approx(4.6),
        "max": 5.0,
        "mean": 3.0,
    }
    assert (report.users_with_one_example, report.users_without_evaluation) == (1, 1)
    assert report.users_with_several_contexts == 1
    assert report.left_out_users == {"no usable example": 1}
    assert report.left_out_examples == {"blank text": 1}
    assert report.majority_label_share == 0.5
    assert report.own_majority_share == pytest.approx((3 / 5 + 1) / 2)
    assert (report.longest_text, report.characters, report.distinct_characters) == (4, 24, 4)
    assert json.loads(json.dumps(report.to_dict()))["policy"] == [USABLE, FEW]
    others = inspect_corpus(load_federation(path), fractions=(0.6, 0.2, 0.2))
    assert "fewer than 3 examples" in others.policy[1] and others.users_without_evaluation == 1


def test_images_have_no_text_statistics():
    found = inspect_corpus(load_federation("digits", settings={"users": 10})).to_dict()
    assert found["policy"] == [OWN_PARTS] and not {"longest_text", "characters", "distinct_characters"} & set(found)


def test_without_labels_there_is_no_majority(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text("user,text\na,hello\n")
    report = inspect_corpus(load_federation(path))
    assert report.majority_label_share is None and report.own_majority_share is None
    assert (report.labels, report.contexts) == (0, 0)


def test_a_huge_population_is_sampled_and_says_so() -> None:
    federation = load_federation("dialects", settings={"users": 10**6})
    start = time.perf_counter()
    report = inspect_corpus(federation, inspect_at_most=300)
    assert time.perf_counter() - start < 5
    assert (report.users, report.inspected_users, report.sampled) == (10**6, 300, True)
    assert report.examples == pytest.approx(64e6, rel=0.05)
    assert report.to_dict() == inspect_corpus(federation, inspect_at_most=300).to_dict()
