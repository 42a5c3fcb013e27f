import numpy as np
import pytest
from scipy.stats import norm, t

from homespun.evaluation.intervals import RESAMPLES, cluster_numbers, estimate, expanded_percentiles, resampled_sums


def test_the_quantiles_are_widened_by_students_t():
    """Of six units, the lower one is at the normal probability of √(6/5) · t(5, 0.025)."""
    values = np.linspace(0, 1, 100_001)
    tail = norm.cdf(np.sqrt(6 / 5) * t.ppf(0.025, 5))
    assert tail < 0.003
    assert expanded_percentiles(values, units=6) == pytest.approx((tail, 1 - tail))
    assert expanded_percentiles(values, units=100_000) == pytest.approx((0.025, 0.975), abs=1e-4)


def test_few_units_have_no_interval():
    assert expanded_percentiles(np.arange(9.0), units=4) == (None, None)
    found = estimate(3, np.arange(9.0), units=4)
    assert (found.value, found.low, found.high) == (3, None, None)


def test_clusters_are_numbered_by_first_occurrence():
    assert cluster_numbers(["b", "a", "b", ("s", 1)]).tolist() == [0, 1, 0, 2]


def test_a_resample_draws_as_many_units_as_there_are():
    found = resampled_sums(np.array([[1.0, 1], [1, 10], [1, 100]]), seed=0)
    assert found.shape == (RESAMPLES, 2)
    assert (found[:, 0] == 3).all()
    assert set(found[:, 1]) == {3, 12, 21, 30, 102, 111, 120, 201, 210, 300}
    assert (found[:, 1] == 111).mean() == pytest.approx(6 / 27, abs=0.02)  # each once


def test_the_draws_depend_on_the_seed_and_the_number_of_units_only():
    one, other = np.arange(7.0)[:, None], np.arange(7.0)[:, None] * [[2, 3]]
    assert np.array_equal(resampled_sums(one, seed=4) * [[2, 3]], resampled_sums(other, seed=4))
    assert not np.array_equal(resampled_sums(one, seed=4), resampled_sums(one, seed=5))


def test_blocks_of_draws_do_not_change_them(monkeypatch):
    values = np.arange(11.0)[:, None]
    whole = resampled_sums(values, seed=1)
    monkeypatch.setattr("homespun.evaluation.intervals.ENTRIES", 11 * 37)
    assert np.array_equal(whole, resampled_sums(values, seed=1))
