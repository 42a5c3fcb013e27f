import math

import numpy as np
import pytest

from homespun.evaluation.language import TextEvaluation, compare, summarize


def test_perplexity_by_hand():
    """The first three tokens are given; padding does not count; users weigh by their tokens."""
    ada = np.array([[9.0, 9, 9, 1, 3, 0], [9, 9, 9, 2, 0, 0]])  # scored: 1, 3 | 2
    bob = np.array([[9.0, 9, 9, 6]])  # scored: 6
    found = summarize([ada, bob, np.zeros((0, 4))], [np.array([5, 4]), np.array([4]), np.array([], dtype=int)])
    assert (found.users, found.examples, found.tokens) == (2, 3, 4)
    assert found.user_loss == (6.0, 6.0) and found.user_tokens == (3, 1)
    assert found.loss == 3.0 and found.perplexity == pytest.approx(math.exp(3))
    assert found.user_perplexity == pytest.approx((math.exp(2), math.exp(6)))
    shown = found.to_dict()
    assert shown["user_mean"] == pytest.approx((math.exp(2) + math.exp(6)) / 2)
    assert shown["user_worst_tenth"] == pytest.approx(math.exp(6))


def test_no_users_have_no_perplexity():
    assert math.isnan(summarize([], []).to_dict()["value"])


def test_a_difference_that_all_users_share_has_no_spread():
    theirs = TextEvaluation(6, (10.0, 20.0) * 3, (5, 10) * 3)
    ours = TextEvaluation(6, (9.5, 19.0) * 3, (5, 10) * 3)  # a tenth of a nat less for every token
    found = compare(ours, theirs)
    assert (found.percent, found.low, found.high) == pytest.approx((100 * (math.exp(-0.1) - 1),) * 3)


def test_a_difference_that_rests_on_one_user_may_not_be_significant():
    found = compare(TextEvaluation(6, (0.0, *[10.5] * 5), (10,) * 6), TextEvaluation(6, (10.0,) * 6, (10,) * 6))
    assert found.percent < 0 and found.low < 0 < found.high


def test_few_users_have_no_interval():
    ours, theirs = TextEvaluation(4, (9.0,) * 4, (10,) * 4), TextEvaluation(4, (10.0,) * 4, (10,) * 4)
    found = compare(ours, theirs)
    assert found.percent == pytest.approx(100 * (math.exp(-0.1) - 1)) and (found.low, found.high) == (None, None)


@pytest.mark.parametrize("users", [6, 19])
def test_where_there_is_no_difference_one_interval_in_twenty_excludes_zero(users):
    """With plain percentiles it is one in seven of six users, and one in twelve of nineteen."""
    draw, tokens = np.random.default_rng(0), (100,) * users
    found = 0
    for _ in range(400):
        theirs = draw.normal(500, 50, users)
        ours = theirs + draw.normal(0, 5, users)
        one = compare(TextEvaluation(users, tuple(ours), tokens), TextEvaluation(users, tuple(theirs), tokens))
        found += one.low > 0 or one.high < 0
    assert 0.02 < found / 400 < 0.085


def test_only_the_same_tokens_can_be_compared():
    with pytest.raises(ValueError, match="same tokens"):
        compare(TextEvaluation(1, (1.0,), (5,)), TextEvaluation(1, (1.0,), (6,)))
