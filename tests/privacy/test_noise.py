"""Noise has the stated distribution and is not repeatable unless it is seeded."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from homespun.privacy.noise import grid_of, secure_normal, seeded_normal, with_noise

MILLION = 1_000_000


@pytest.mark.parametrize("normal", [secure_normal, seeded_normal(0, "test")], ids=["secure", "seeded"])
def test_a_million_draws_are_standard_normal(normal):
    drawn = normal(MILLION)
    assert drawn.shape == (MILLION,) and np.isfinite(drawn).all()
    assert abs(drawn.var() - 1) < 0.01 and abs(drawn.mean()) < 0.005
    # One in ten thousand honest runs falls below this.
    assert kstest(drawn, "norm").pvalue > 1e-4
    neighbours = (
        np.corrcoef(drawn[:-1], drawn[1:])[0, 1],
        np.corrcoef(drawn[: MILLION // 2], drawn[MILLION // 2 :])[0, 1],
    )
    assert max(map(abs, neighbours)) < 0.01


def test_another_distribution_is_detected():
    drawn = np.random.default_rng(0).uniform(-(3**0.5), 3**0.5, MILLION)  # the same mean and variance
    assert kstest(drawn, "norm").pvalue < 1e-4


def test_secure_noise_never_repeats_and_seeded_noise_always_does():
    assert not np.array_equal(secure_normal(8), secure_normal(8))
    one, same, other = (seeded_normal(3, *purpose)(8) for purpose in (("a", 1), ("a", 1), ("a", 2)))
    assert np.array_equal(one, same) and not np.array_equal(one, other)
    assert secure_normal(0).shape == (0,) and secure_normal(7).shape == (7,)


def test_noise_is_added_in_float64_and_then_rounded_to_its_own_grid():
    values = torch.tensor([[0.1, -7.3], [1e-30, 1000.0]])
    found = with_noise(values, seeded_normal(0), deviation=3.0)
    drawn = torch.from_numpy(3.0 * seeded_normal(0)(4)).reshape(2, 2)
    grid = 2.0**-15
    assert found.dtype == torch.float64
    assert torch.equal(found, ((values.double() + drawn) / grid).round() * grid)
    # float32 holds 2^24 steps of it exactly, here 512, and rounds what is larger: a function of the release alone
    small = found.abs() <= 512
    assert small.tolist() == [[True, True], [True, False]]
    assert torch.equal(found[small], found[small].float().double())


@pytest.mark.parametrize(
    ("deviation", "grid"), [(1.0, 2.0**-16), (1.999, 2.0**-16), (2.0, 2.0**-15), (3.0, 2.0**-15), (0.075, 2.0**-20)]
)
def test_the_grid_is_a_power_of_two_near_a_65536th_of_the_standard_deviation(deviation, grid):
    assert grid_of(deviation) == grid


def test_zeros_have_no_sign():
    found = with_noise(torch.tensor([-1e-9, 1e-9]), lambda count: np.zeros(count), deviation=1.0)
    assert found.tolist() == [0.0, 0.0] and not torch.signbit(found).any()


def test_rounding_adds_nothing_to_the_mean_or_the_deviation():
    """A sum far below the grid's step still counts: the noise decides in which direction it is rounded."""
    step = grid_of(1.0)
    found = with_noise(torch.full((MILLION,), 0.25 * step), seeded_normal(7), deviation=1.0)
    drawn = torch.from_numpy(seeded_normal(7)(MILLION))
    assert float((found - drawn).mean()) == pytest.approx(0.25 * step, rel=0.01)
    assert float(found.std()) == pytest.approx(float(drawn.std()), rel=1e-6)
