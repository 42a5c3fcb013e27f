"""Losses by conversation: pooled over seeds, and differences of perplexity, by hand."""

import math

import numpy as np
import pytest

from homespun.evaluation.conversation_losses import (
    compare_losses,
    estimate_perplexity,
    perplexity,
    pool_losses,
    sum_by_conversation,
)


def losses(loss, words=None, conversation=None):
    count = len(loss)
    return {"conversation": conversation or list(range(count)), "loss": loss, "words": words or [1] * count}


def test_rows_are_summed_in_the_order_of_conversations():
    found = sum_by_conversation([(7, 1.0, 2), (3, 0.5, 1), (7, 2.0, 4)])
    assert found == {"conversation": [3, 7], "loss": [0.5, 3.0], "words": [1, 6]}


def test_a_conversation_that_two_seeds_test_is_one_unit():
    pooled = pool_losses([losses([1.0, 2.0], [3, 4], [5, 9]), losses([0.25, 4.0], [1, 2], [9, 7])])
    assert pooled == {"conversation": [5, 7, 9], "loss": [1.0, 4.0, 2.25], "words": [3, 2, 5]}
    assert perplexity(pooled) == pytest.approx(math.exp(7.25 / 10))


def test_compared_losses_by_hand():
    """Half the perplexity in every conversation: -50 % in every resample."""
    ours, theirs = losses([2.0] * 8), losses([2.0 + math.log(2)] * 8)
    found = compare_losses(ours, theirs)
    assert (found.value, found.low, found.high) == pytest.approx((-50, -50, -50))
    back = compare_losses(theirs, ours)
    assert (back.value, back.low, back.high) == pytest.approx((100, 100, 100))
    noisy = compare_losses(losses(list(2 + np.linspace(-1, 1, 8))), ours)
    assert noisy.value == pytest.approx(0) and -100 < noisy.low < 0 < noisy.high
    assert compare_losses(losses([1.0] * 4), losses([2.0] * 4)).low is None  # too few conversations


def test_the_interval_of_a_perplexity_by_hand():
    """The same perplexity in every conversation: the same in every resample."""
    found = estimate_perplexity(losses([2.0, 4.0] * 4, [1, 2] * 4))
    assert (found.value, found.low, found.high) == pytest.approx((math.exp(2),) * 3)
    spread = estimate_perplexity(losses([1.0, 3.0] * 4))
    assert spread.value == pytest.approx(math.exp(2))
    assert math.exp(1) < spread.low < spread.value < spread.high < math.exp(3)


def test_pooling_two_seeds_keeps_the_number_of_conversations():
    """The same eight conversations tested by two seeds are not sixteen: the interval is that of one seed."""
    ours, theirs = losses(list(2 + np.linspace(-1, 1, 8))), losses([2.0] * 8)
    once, twice = compare_losses(ours, theirs), compare_losses(pool_losses([ours] * 2), pool_losses([theirs] * 2))
    assert (twice.value, twice.low, twice.high) == pytest.approx((once.value, once.low, once.high))


def test_other_conversations_are_rejected():
    for other in (losses([1.0]), losses([1.0] * 8, conversation=list(range(1, 9))), losses([1.0] * 8, [2] * 8)):
        with pytest.raises(ValueError, match="same conversations"):
            compare_losses(losses([1.0] * 8), other)
