"""The lengths of texts, and how many of them a method truncates."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpus_files import load, write_jsonl

from homespun.core.method import Task, Window
from homespun.data import load_federation
from homespun.data.corpus_report import inspect_corpus
from homespun.data.truncation import measure_truncation
from homespun.system.method_loading import load_method


def lengths(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


def test_the_report_counts_long_texts(tmp_path: Path) -> None:
    texts = ["x" * length for length in (40, 41, 100, 101, 1001)]
    path = write_jsonl(tmp_path / "c.jsonl", [{"user": f"u{len(text) % 2}", "text": text} for text in texts])
    found = inspect_corpus(load(path)).to_dict()
    assert found["longer_than"] == {"40": 0.8, "100": 0.4, "280": 0.2, "1000": 0.2}
    assert "longer_than" not in inspect_corpus(load_federation("digits", settings={"users": 10})).to_dict()


def test_truncated_texts_are_counted_exactly_in_a_small_corpus(tmp_path: Path) -> None:
    rows = [{"user": "a", "text": "xxx"}] * 3 + [{"user": "b", "text": "xxxx"}] * 2
    federation = load(write_jsonl(tmp_path / "c.jsonl", rows))
    cut = measure_truncation(federation, Window("length", 3, unit="characters", sizes=lengths))
    assert (cut.share, cut.exact) == (0.4, True)
    assert str(cut) == "40 % of the texts are longer than length = 3 characters and are truncated"
    assert measure_truncation(federation, Window("length", 4, unit="characters", sizes=lengths)).share == 0


def test_a_large_corpus_is_sampled_and_users_are_weighted_by_their_texts(tmp_path: Path) -> None:
    rows = [{"user": "a", "text": "xxxx"}] * 300 + [{"user": "b", "text": "x"}] * 100
    federation = load(write_jsonl(tmp_path / "c.jsonl", rows))
    read: list[str] = []

    def sizes(texts: list[str]) -> list[int]:
        read.extend(texts)
        return lengths(texts)

    cut = measure_truncation(federation, Window("length", 3, unit="tokens", sizes=sizes), texts=20)
    assert (cut.share, cut.exact, len(read)) == (0.75, False, 20)
    assert str(cut) == "about 75 % of the texts are longer than length = 3 tokens and are truncated"
    one = measure_truncation(federation, Window("length", 3, unit="tokens", sizes=lengths), users=1)
    assert one.share in (0, 1) and not one.exact


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        ("furl", {"length": 7}, ("characters", 7)),
        ("fedavg", {}, ("characters", 40)),
        ("central", {}, ("characters", 40)),
        ("fedperc", {"length": 9}, ("tokens", 9)),
        ("fedperc_generated", {}, ("tokens", 64)),
        ("meta_learning", {}, ("tokens", 64)),
        ("split_learning", {}, ("tokens", 64)),
        ("fedrep", {"base_method": "furl", "inner": {"length": 5}}, ("characters", 5)),
    ],
)
def test_methods_say_how_much_they_read(method: str, settings: dict[str, object], said: tuple[str, int]) -> None:
    window = load_method(method, settings, Task(classes=2, population=3)).model.window
    assert window is not None and (window.unit, window.length) == said
    assert window.setting == ("base_settings.length" if method == "fedrep" else "length")
    long, short = window.sizes(["word " * 200, "word"])
    assert long > 64 and short < 5


def test_images_have_no_length() -> None:
    assert load_method("preference", {}, Task(classes=2, population=3, image=(28, 28))).model.window is None
