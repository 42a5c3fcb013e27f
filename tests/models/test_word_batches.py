"""Texts as batches of a next-word model, and the own words in them."""

import torch

from homespun.models.next_word import LONGEST_SPELLING, SPELLED, read_spelling
from homespun.models.vocabulary import PADDING, UNKNOWN, Vocabulary
from homespun.models.word_batches import encode_texts, frequent_own_words, spell_elsewhere

WORDS = Vocabulary(("the", "sea"))


def test_words_and_spellings():
    found = encode_texts(["The zürich sea", ":)", "sea " * 9], WORDS, length=4, spelled=True)
    assert found["words"].tolist() == [[4, UNKNOWN, 5, PADDING], [PADDING] * 4, [5] * 4]
    assert found["length"].tolist() == [3, 1, 4]
    assert found["spelling"].shape == (3, 4, SPELLED)
    assert read_spelling(found["spelling"][0, 1]).decode() == "zürich"
    assert not found["spelling"][0, [0, 2, 3]].any() and not found["spelling"][1:].any()
    assert encode_texts([], WORDS, length=4, spelled=False)["words"].shape == (0, 4)


def test_words_that_are_too_long_are_no_own_words():
    found = encode_texts(["z" * LONGEST_SPELLING + " " + "z" * 10_000], WORDS, length=4, spelled=True)
    assert [bool(one.any()) for one in found["spelling"][0, :2]] == [True, False]


def test_the_most_frequent_own_words_come_first():
    found = encode_texts(["b a b", "c c d", "c sea"], WORDS, length=4, spelled=True)
    rows, counts = frequent_own_words([found["spelling"]])
    assert [read_spelling(row) for row in rows] == [b"c", b"b", b"a", b"d"] and counts.tolist() == [3, 2, 1, 1]
    rows, counts = frequent_own_words([torch.zeros(2, 3, SPELLED, dtype=torch.uint8)])
    assert rows.shape == (0, SPELLED) and counts.shape == (0,)


def test_own_words_elsewhere():
    """In the whole but not in the part: `b` twice more, `c` once, `d` never read."""
    part, whole = ["a b", "the sea", "a"], ["a b", "the sea", "a", "b c", "b the", "sea sea sea sea d"]
    found = spell_elsewhere(part, whole, WORDS, length=4)
    assert found.shape == (3, 1, SPELLED)
    assert [read_spelling(row) for row in found[:, 0]] == [b"b", b"b", b"c"]
    assert spell_elsewhere(part[:2], whole, WORDS, length=4).shape == (2, 2, SPELLED)
    assert spell_elsewhere(part, part, WORDS, length=4).shape == (3, 0, SPELLED)
    assert spell_elsewhere([], whole, WORDS, length=4).shape == (0, 0, SPELLED)
