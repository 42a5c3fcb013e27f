"""How rare words are: quantiles and OOV rates of small corpora, by hand."""

import json
import runpy
import sys
from collections import Counter
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "word_frequencies.py"


@pytest.fixture
def script(monkeypatch):
    return runpy.run_path(str(SCRIPT))


def test_the_last_tenth(script):
    texts = [str(number) for number in range(25)]
    assert script["last_tenth"](texts) == (texts[:23], ["23", "24"])
    assert script["last_tenth"](texts[:9]) == (texts[:9], [])


def test_quantiles_of_frequencies(script):
    """A tenth of the words is 100,000 of a million, the logarithm 5; the median is half way to that of 900,000."""
    found = script["quantiles"](Counter({"the": 90, "rare": 10}))
    assert len(found) == 101
    assert (found[0], found[50], found[100]) == (5.0, pytest.approx(5.4771, abs=1e-4), pytest.approx(5.9542, abs=1e-4))


def test_words_that_are_too_long_are_no_own_words(script):
    found = script["own_words"](Counter({"we": 9, "zorblax": 2, "x" * 31: 5}), {"we"})
    assert found == {"zorblax"}


def write(path, users):
    rows = [{"user": user, "text": text} for user, texts in users.items() for text in texts]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def test_oov_rates_by_hand(tmp_path, monkeypatch, capsys):
    """A vocabulary of one word has `we`. Of the four tested words, zorblax is known from the texts before; quib and
    wump are in the tested text alone."""
    ada = ["we zorblax"] + ["we"] * 8 + ["we zorblax quib wump"]
    corpus = write(tmp_path / "chat.jsonl", {"ada": ada, "bo": ["we"]})
    record = tmp_path / "docs" / "counts.json"
    script = runpy.run_path(str(SCRIPT))
    monkeypatch.setitem(script["oov_rates"].__globals__, "VOCABULARIES", (1, 2))
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), corpus, "--record", str(record)])
    script["main"]()
    found = json.loads(record.read_text())["corpora"]["chat"]
    assert (found["users"], found["words"], found["different"], found["tested"]) == (2, 15, 4, 4)
    assert found["oov"]["1"] == {"none": 0.75, "training": 0.5, "all": 0.0}
    assert found["oov"]["2"] == {"none": 0.5, "training": 0.5, "all": 0.0}  # zorblax is the second word
    assert "chat.jsonl: 15 words of 2 users" in capsys.readouterr().out
    before = record.read_bytes()
    script["main"]()
    assert record.read_bytes() == before and before.count(b"\n") == 3
