"""Pooled counts, their intervals and paired differences."""

import numpy as np
import pytest

from homespun.evaluation.intervals import expanded_percentiles, resampled_sums
from homespun.evaluation.next_word_intervals import difference, resample, share, sum_counts
from homespun.evaluation.next_words import COUNTS

# words, hits, OOV words, those that are hits, covered ones, keys, saved keys
USERS = [
    (10, 2, 1, 0, 0, 50, 10), (20, 6, 2, 1, 1, 90, 20), (5, 1, 0, 0, 0, 20, 5), (40, 16, 4, 2, 3, 200, 90),
    (8, 0, 0, 0, 0, 30, 0), (0, 0, 0, 0, 0, 0, 0),
]  # fmt: skip


def pooled(users=USERS, positions=None):
    counts = dict(zip(COUNTS, map(list, zip(*users, strict=True)), strict=True))
    return resample([sum_counts([{"user_counts": counts}], [positions])])[0]


def test_shares_are_ratios_of_sums():
    """25 hits of 83 words; the user without words is no unit of the bootstrap."""
    counts = pooled()
    assert counts.users == 5 and counts.words == 83
    values = {"emr3": 25 / 83, "kemr3": 22 / 76, "oov_accuracy": 3 / 7, "oov_rate": 7 / 83, "oov_rate_left": 3 / 83}
    for name, value in {**values, "keystrokes_saved": 125 / 390}.items():
        assert share(counts, name).value == pytest.approx(value)


def test_an_interval_is_that_of_resampled_users():
    found = share(pooled(), "emr3")
    sums = resampled_sums(np.array([(words, hits) for words, hits, *_ in USERS[:5]], dtype=float), seed=0)
    assert (found.low, found.high) == pytest.approx(expanded_percentiles(sums[:, 1] / sums[:, 0], units=5))
    assert found.low < found.value < found.high


def test_systems_are_resampled_together():
    """Each as it would be alone, also if their users differ."""
    one, few, other = (pooled(users).of_users for users in (USERS, USERS[:2], [*USERS[:4], USERS[0]]))
    for found, alone in zip(resample([one, few, other, few[:0]]), (one, few, other, few[:0]), strict=True):
        assert np.array_equal(found.of_users, alone) and np.array_equal(found.resampled, resample([alone])[0].resampled)


def test_resamples_without_unknown_words_do_not_count():
    """Three of five users have unknown words, so that one resample in a hundred has none."""
    found = share(pooled(), "oov_accuracy")
    assert 0 <= found.low < 3 / 7 < found.high <= 0.5
    assert share(pooled([(10, 2, 0, 0, 0, 50, 10)] * 5), "oov_accuracy") is None


def test_a_difference_is_paired():
    """One more hit in ten words of every user: the difference is the same in every resample."""
    hits = {10: 1, 20: 8, 30: 6, 40: 20, 50: 5}
    theirs = [(words, hit, 0, 0, 0, 1, 0) for words, hit in hits.items()]
    ours = [(words, hits + words // 10, *rest) for words, hits, *rest in theirs]
    found = difference(pooled(ours), pooled(theirs), "emr3")
    assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))


def test_other_words_are_not_compared():
    other = pooled([(words, hits, oov + (place == 0), *rest) for place, (words, hits, oov, *rest) in enumerate(USERS)])
    assert difference(other, pooled(), "kemr3") is None and difference(other, pooled(), "emr3").value == 0
    assert difference(pooled(USERS[1:]), pooled(), "emr3") is None
