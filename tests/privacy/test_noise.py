"""Noise has the distribution it claims, and cannot be repeated unless somebody asks for that."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from homespun.privacy.noise import noise_like, secure_normal, seeded_normal

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


def test_another_distribution_would_be_noticed():
    drawn = np.random.default_rng(0).uniform(-(3**0.5), 3**0.5, MILLION)  # the same mean and variance
    assert kstest(drawn, "norm").pvalue < 1e-4


def test_secure_noise_never_repeats_and_seeded_noise_always_does():
    assert not np.array_equal(secure_normal(8), secure_normal(8))
    one, same, other = (seeded_normal(3, *purpose)(8) for purpose in (("a", 1), ("a", 1), ("a", 2)))
    assert np.array_equal(one, same) and not np.array_equal(one, other)
    assert secure_normal(0).shape == (0,) and secure_normal(7).shape == (7,)


def test_noise_has_the_shape_and_type_of_what_it_is_added_to():
    found = noise_like(torch.zeros(200, 5, dtype=torch.float32), seeded_normal(0), deviation=3.0)
    assert found.shape == (200, 5) and found.dtype == torch.float32
    assert float(found.std()) == pytest.approx(3.0, rel=0.1)
