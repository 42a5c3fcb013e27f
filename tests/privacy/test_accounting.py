"""The epsilon of rounds, against reference values and computed by hand."""

import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from homespun.core.errors import SettingsError
from homespun.privacy.accounting import (
    Release,
    compute_epsilon,
    count_affordable_rounds,
    find_noise_multiplier,
    require_delta,
)

REFERENCE = [  # rate, noise multiplier, rounds, delta, RDP, PLD
    (0.01, 1.0, 1000, 1e-5, 2.101367, 1.828244),
    (0.01, 1.1, 10000, 1e-5, 5.632011, 5.192620),
    (0.05, 1.0, 100, 1e-5, 4.038913, 3.502149),
    (0.1, 2.0, 100, 1e-4, 2.214351, 1.965920),
    (1, 10, 100, 1e-5, 4.728507, 4.377179),
    (0.04, 1.5, 2250, 1e-5, 7.329335, 6.768787),
]


@pytest.mark.parametrize(("rate", "noise", "rounds", "delta", "rdp", "pld"), REFERENCE)
def test_reference_values(rate, noise, rounds, delta, rdp, pld):
    spending = {Release(rate, noise): rounds}
    assert compute_epsilon(spending, delta=delta, accountant="rdp") == pytest.approx(rdp, abs=1e-3)
    found = compute_epsilon(spending, delta=delta)
    assert found == pytest.approx(pld, abs=1e-3)
    assert found <= compute_epsilon(spending, delta=delta, accountant="coarse") <= 1.02 * found  # on the safe side


def test_without_sampling_epsilon_is_that_of_the_gaussian_mechanism_in_closed_form():
    """100 rounds of noise 10 equal one of noise 1 (Balle and Wang, 2018, theorem 8)."""

    def delta_of(cost):
        return norm.cdf(0.5 - cost) - math.exp(cost) * norm.cdf(-0.5 - cost)

    exact = brentq(lambda cost: delta_of(cost) - 1e-5, 0.1, 20)
    assert compute_epsilon({Release(1, 10): 100}, delta=1e-5) == pytest.approx(exact, abs=1e-3)


def test_spending_adds_up_in_any_order():
    one, other = Release(0.1, 2.0), Release(0.2, 1.5)
    assert compute_epsilon({}, delta=1e-5) == compute_epsilon({one: 0}, delta=1e-5) == 0.0
    both = compute_epsilon({one: 20, other: 10}, delta=1e-5)
    assert both == compute_epsilon({other: 10, one: 20}, delta=1e-5)
    assert both > max(compute_epsilon({one: 20}, delta=1e-5), compute_epsilon({other: 10}, delta=1e-5))


def test_the_number_of_rounds_that_fit_into_a_budget():
    release, before = Release(0.1, 2.0), {Release(0.1, 2.0): 20, Release(0.5, 4.0): 5}
    budget = compute_epsilon({release: 27, Release(0.5, 4.0): 5}, delta=1e-5) + 1e-6
    found = count_affordable_rounds(release, rounds=50, spent=before, budget=budget, delta=1e-5)
    assert found == 7
    assert count_affordable_rounds(release, rounds=5, spent=before, budget=budget, delta=1e-5) == 5
    assert count_affordable_rounds(release, rounds=50, spent=before, budget=0.1, delta=1e-5) == 0


@pytest.mark.parametrize(("target", "rate", "rounds"), [(2.0, 0.05, 100), (8.0, 0.1, 40)])
def test_the_least_noise_for_a_target(target, rate, rounds):
    found = find_noise_multiplier(target, rate=rate, rounds=rounds, delta=1e-5)
    assert compute_epsilon({Release(rate, found): rounds}, delta=1e-5) <= target
    assert compute_epsilon({Release(rate, 0.98 * found): rounds}, delta=1e-5) > target


def test_a_large_epsilon_gets_the_minimum_noise():
    assert find_noise_multiplier(200.0, rate=0.33, rounds=1, delta=0.01) == pytest.approx(0.1, rel=2e-3)
    assert 0.1 <= find_noise_multiplier(60.0, rate=0.33, rounds=1, delta=0.01) < 0.12


def test_impossible_values_are_rejected():
    with pytest.raises(SettingsError, match="needs a noise multiplier above 10000"):
        find_noise_multiplier(1e-6, rate=1.0, rounds=1000, delta=1e-9)
    for rate, noise in ((0, 1), (1.5, 1), (0.1, 0), (0.1, -1), (0.1, math.nan), (0.1, math.inf)):
        with pytest.raises(SettingsError, match="expected"):
            Release(rate, noise)
    require_delta(1e-5, users=9000)
    for delta in (0, 1 / 9000, 0.5, math.nan):
        with pytest.raises(SettingsError, match="1/9000"):
            require_delta(delta, users=9000)
