"""BLEU by hand, and against sacrebleu."""

import math
import sys

import numpy as np
import pytest
import sacrebleu

from homespun.core.errors import InputError
from homespun.evaluation.bleu import bleu_counts, corpus_bleu, sacrebleu_corpus, sentence_bleu

LINES = ["the tea is cold", "we met in the old town", "no way", "read it again and again", "this is a very long walk"]


def counts_of(hypothesis, reference):
    return bleu_counts(hypothesis.split(), reference.split())


def random_corpus(seed, sentences, *, longest=9, words=6):
    draw = np.random.default_rng(seed)

    def side():
        return [
            " ".join(f"w{word}" for word in draw.integers(0, words, draw.integers(0, longest + 1)))
            for _ in range(sentences)
        ]

    return side(), side()


def test_repeated_words_match_as_often_as_in_the_reference():
    """Papineni's example: "the" occurs seven times, twice in the reference."""
    found = counts_of("the the the the the the the", "the cat is on the mat")
    assert found.tolist() == [2, 0, 0, 0, 7, 6, 5, 4, 7, 6]
    assert corpus_bleu(found, order=1) == pytest.approx(2 / 7)
    assert corpus_bleu(found, order=2) == 0


def test_bleu_by_hand():
    """5 of 5 words, 2 of 4 bigrams, 1 of 3 trigrams, 0 of 2 4-grams; one word too short."""
    found = counts_of("we sat on grass the", "we sat on the green grass")
    assert found.tolist() == [5, 2, 1, 0, 5, 4, 3, 2, 5, 6]
    brevity = math.exp(1 - 6 / 5)
    assert corpus_bleu(found, order=1) == pytest.approx(brevity)
    assert corpus_bleu(found, order=2) == pytest.approx(brevity * math.sqrt(1 / 2))
    assert corpus_bleu(found, order=3) == pytest.approx(brevity * (1 / 2 * 1 / 3) ** (1 / 3))
    assert corpus_bleu(found) == 0
    assert corpus_bleu(found, smoothing="exp") == pytest.approx(brevity * (1 / 2 * 1 / 3 * 1 / 4) ** (1 / 4))
    assert corpus_bleu(found, smoothing="add-one") == pytest.approx(brevity * (3 / 5 * 2 / 4 * 1 / 3) ** (1 / 4))


def test_the_second_missing_order_counts_a_quarter():
    found = counts_of("a b c x", "b c y a")  # 3 of 4 words, 1 of 3 bigrams, 0 of 2, 0 of 1
    assert corpus_bleu(found, smoothing="exp") == pytest.approx((3 / 4 * 1 / 3 * 1 / 4 * 1 / 4) ** (1 / 4))


def test_counts_add_up_and_leading_axes_are_independent():
    pairs = np.stack([counts_of("a b c d", "a b c d"), counts_of("a x", "a b c d")])
    assert corpus_bleu(pairs, order=1) == pytest.approx([1, 1 / 2 * math.exp(1 - 4 / 2)])
    assert corpus_bleu(pairs.sum(0), order=1) == pytest.approx(5 / 6 * math.exp(1 - 8 / 6))
    assert corpus_bleu(np.broadcast_to(pairs, (3, 2, 10))).shape == (3, 2)


@pytest.mark.parametrize("smoothing", ["none", "exp", "add-one"])
def test_no_match_and_no_words_are_zero(smoothing):
    assert corpus_bleu(counts_of("x y", "a b"), smoothing=smoothing) == 0
    assert corpus_bleu(counts_of("", "a b"), smoothing=smoothing) == 0
    assert corpus_bleu(np.zeros(10, dtype=int), smoothing=smoothing) == 0


def test_a_short_sentence_can_be_perfect():
    def of(hypothesis, reference):
        return sentence_bleu(bleu_counts(hypothesis, reference))

    assert of(["no"], ["no"]) == 1
    assert of(["no", "way"], ["no"]) == pytest.approx((1 / 2 * 1 / 2) ** (1 / 2))  # two orders: 1/2, (0 + 1)/(1 + 1)
    assert of(["a", "b", "c", "d", "e"], ["a", "b", "c", "d", "e"]) == 1
    assert of(["no"], ["yes"]) == of([], ["yes"]) == 0


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("ours", "theirs"), [("none", "none"), ("exp", "exp"), ("add-one", "add-k")])
@pytest.mark.parametrize("order", [1, 2, 4])
def test_corpus_bleu_is_that_of_sacrebleu(seed, ours, theirs, order):
    hypotheses, references = random_corpus(seed, 1 + seed, longest=3 + seed)
    metric = sacrebleu.BLEU(tokenize="none", force=True, smooth_method=theirs, max_ngram_order=order)
    expected = metric.corpus_score(hypotheses, [references]).score / 100
    total = sum(counts_of(*pair) for pair in zip(hypotheses, references, strict=True))
    assert corpus_bleu(total, order=order, smoothing=ours) == pytest.approx(expected, abs=1e-9)


def test_the_signature_names_tokenizer_smoothing_and_version():
    others = ["the tea is too cold", *LINES[1:]]
    found = sacrebleu_corpus(others, LINES, tokenize="none")
    assert found.signature == f"nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:{sacrebleu.__version__}"
    total = sum(counts_of(*pair) for pair in zip(others, LINES, strict=True))
    assert 0.5 < found.bleu < 1 and found.bleu == pytest.approx(corpus_bleu(total), abs=1e-9)
    assert "tok:13a" in sacrebleu_corpus(others, LINES).signature


def test_wrong_input_is_rejected():
    with pytest.raises(InputError, match="order from 1 to 4"):
        corpus_bleu(np.zeros(10), order=5)
    with pytest.raises(InputError, match="Did you mean 'add-one'"):
        corpus_bleu(np.zeros(10), smoothing="addone")
    with pytest.raises(InputError, match=r"shape \(3, 9\)"):
        corpus_bleu(np.zeros((3, 9)))
    with pytest.raises(InputError, match="1 hypotheses and 2 references"):
        sacrebleu_corpus(["a"], ["a", "b"])


def test_without_the_extra_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(InputError, match=r"needs the extra dialogue.*pip install 'homespun\[dialogue\]'"):
        sacrebleu_corpus(["a"], ["a"])
