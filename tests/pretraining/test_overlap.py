import pytest

from homespun.core.errors import DataError
from homespun.pretraining.overlap import Overlap, measure, require_low_overlap, runs, without_overlap

THIRTEEN = "We shall meet again when the frost has gone from the high pastures"


def test_runs_are_words_in_a_row_in_lower_case_without_punctuation():
    assert list(runs("The cat's HAT, (again)!", 3)) == ["the cat's hat", "cat's hat again"]
    assert list(runs("two words", 3)) == []


def test_the_share_counts_long_sentences_that_have_a_run_in_common():
    evaluated = ["One two three four.", "Red, green; blue!", "Never seen at all.", "too short"]
    texts = {"first": ["zero ONE two - three"], "second": ["red green", "blue", "RED GREEN BLUE"], "third": ["at all"]}
    found = measure(evaluated, texts, length=3)
    assert found == Overlap(sentences=3, found=2, sources={"first": 1, "second": 1})
    assert found.share == 2 / 3


def test_thirteen_words_are_enough_and_twelve_are_not():
    assert len(THIRTEEN.split()) == 13
    assert measure([THIRTEEN], {"text": [f"Indeed, {THIRTEEN.lower()}, he said."]}).found == 1
    assert measure([THIRTEEN], {"text": [THIRTEEN.rsplit(" ", 1)[0]]}) == Overlap(sentences=1, found=0, sources={})
    assert measure([THIRTEEN.rsplit(" ", 1)[0]], {"text": [THIRTEEN]}).sentences == 0


def test_paragraphs_with_such_a_run_are_dropped():
    assert without_overlap([THIRTEEN], ["Something else.", f"He wrote: {THIRTEEN}."]) == ["Something else."]


def test_one_sentence_in_a_thousand_is_allowed_and_two_are_refused():
    require_low_overlap(Overlap(sentences=1000, found=1, sources={"mine": 1}))
    with pytest.raises(DataError, match=r"2 of 1000 .*0\.20%.*Worst: theirs \(2 sentences\), mine \(1 sentences\)"):
        require_low_overlap(Overlap(sentences=1000, found=2, sources={"mine": 1, "theirs": 2}))
