"""Metrics of replies by hand, and the coverage of their intervals."""

import math

import numpy as np
import pytest

from homespun.core.errors import InputError
from homespun.evaluation.bleu import bleu_counts, sentence_bleu
from homespun.evaluation.replies import distinct, evaluate_replies

NAMES = {
    *("bleu_1", "bleu_2", "bleu_4", "bleu_4_smoothed", "sentence_bleu"),
    *("distinct_1", "distinct_2", "length", "most_frequent"),
}


def words(*texts):
    return [text.split() for text in texts]


def test_metrics_by_hand():
    replies = words("a b a", "a b", "a b", "c")
    references = words("a b c", "b a", "a b d", "c")
    found = evaluate_replies(replies, references, clusters=[1, 1, 2, 2])
    assert set(found) == NAMES
    value = {name: one.value for name, one in found.items()}
    brevity = math.exp(1 - 9 / 8)  # 8 words, 9 in the references
    assert value["bleu_1"] == pytest.approx(brevity * 7 / 8)  # 2, 2, 2, 1
    assert value["bleu_2"] == pytest.approx(brevity * math.sqrt(7 / 8 * 2 / 4))  # a b in the first and the third
    assert value["bleu_4"] == value["bleu_4_smoothed"] == 0  # there are no 4-grams
    by_sentence = [sentence_bleu(bleu_counts(*pair)) for pair in zip(replies, references, strict=True)]
    assert value["sentence_bleu"] == pytest.approx(sum(by_sentence) / 4)
    assert value["distinct_1"] == pytest.approx(3 / 8) and value["distinct_2"] == pytest.approx(2 / 4)
    assert value["length"] == 2 and value["most_frequent"] == 1 / 2
    assert found["length"].low is None  # two conversations


def test_smoothed_bleu_differs_where_an_order_has_no_match():
    found = evaluate_replies(words("a b c d x"), words("a b c y d"), clusters=[0])
    assert found["bleu_4"].value == 0
    assert found["bleu_4_smoothed"].value == pytest.approx((4 / 5 * 2 / 4 * 1 / 3 * (1 / 2) / 2) ** (1 / 4))


def test_without_ngrams_nothing_is_distinct():
    assert distinct(words("a", "b"), 2) == 0
    assert evaluate_replies([[], []], words("a", "b"), clusters=[0, 1])["distinct_1"].value == 0


def test_one_reply_to_everything_is_visible():
    found = evaluate_replies(words(*["i see"] * 12), words(*["well yes"] * 12), clusters=range(12))
    assert found["most_frequent"].value == found["most_frequent"].low == 1
    assert found["distinct_1"].value == pytest.approx(1 / 12)
    assert (found["length"].value, found["length"].low, found["length"].high) == (2, 2, 2)


def test_conversations_are_resampled_not_replies():
    """Each of ten replies in a conversation has the same length: ten times as many replies say nothing new."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(1, 9, 30)
    once = [["w"] * length for length in lengths]
    often = [reply for reply in once for _ in range(10)]
    clusters = [number for number in range(30) for _ in range(10)]
    one = evaluate_replies(once, once, clusters=range(30))["length"]
    many = evaluate_replies(often, often, clusters=clusters)["length"]
    assert (one.value, one.low, one.high) == pytest.approx((many.value, many.low, many.high))
    separate = evaluate_replies(often, often, clusters=range(300))["length"]
    assert separate.high - separate.low < 0.5 * (many.high - many.low)


@pytest.mark.parametrize("metric", ["distinct_1", "bleu_1"])
def test_one_interval_in_twenty_misses(metric):
    """Conversations of three replies over Zipf's words. Resampled conversations have too few different words: without
    the linearization, no interval of distinct-1 would contain its expectation."""
    draw = np.random.default_rng(7)
    weights = 1 / np.arange(1, 301)

    def sample():
        shift = np.repeat(draw.integers(0, 40, 30), 3)  # a conversation has its words
        texts = [
            [[str((word + one) % 300) for word in draw.choice(300, 5, p=weights / weights.sum())] for one in shift]
            for _ in range(2)
        ]
        return *texts, np.repeat(np.arange(30), 3).tolist()

    samples = [sample() for _ in range(150)]
    found = [
        evaluate_replies(replies, references, clusters=clusters)[metric] for replies, references, clusters in samples
    ]
    expected = np.mean([one.value for one in found])
    missed = np.mean([not one.low <= expected <= one.high for one in found])
    assert 0.01 < missed < 0.10


def test_wrong_input_is_rejected():
    with pytest.raises(InputError, match="1 replies, 2 references, 1 clusters"):
        evaluate_replies(words("a"), words("a", "b"), clusters=[0])
    with pytest.raises(InputError, match="0 replies, 0 references"):
        evaluate_replies([], [], clusters=[])
    with pytest.raises(InputError, match="references are texts"):
        evaluate_replies(words("a"), ["a"], clusters=[0])
