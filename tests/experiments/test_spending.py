"""The total privacy cost of the private runs of a comparison."""

import sys

import pytest

from homespun.experiments.spending import total_privacy_cost
from homespun.privacy.accounting import Release, compute_epsilon


def run(*, releases=40, noise_multiplier=0.7689014, rate=0.1, delta=1e-5, cohort=900, sampler="poisson", **more):
    privacy = {
        "noise": "central", "noise_multiplier": noise_multiplier, "rate": rate, "releases": releases, "delta": delta,
        "epsilon": 7.997595, "epsilon_rdp": 8.6, **more,
    }  # fmt: skip
    return {"run": {"cohort": cohort, "sampler": sampler}, "privacy": privacy}


def test_five_seeds_at_epsilon_8_cost_16_9_and_55_runs_74_5():
    """The figures of MNIST's table: nine methods and two variants, five seeds, 40 rounds with a tenth of the users."""
    five = total_privacy_cost([*[run()] * 5, {"privacy": None}], users=9000)
    assert (five["runs"], five["runs_without_privacy"], five["delta"]) == (5, 1, 1e-5)
    assert five["epsilon"] == five["epsilon_pld"] < five["epsilon_rdp"]
    assert five["epsilon"] == pytest.approx(16.865, abs=0.005)
    assert total_privacy_cost([run()] * 55, users=9000)["epsilon"] == pytest.approx(74.52, abs=0.01)


def test_one_run_costs_its_own_epsilon_and_no_run_nothing():
    assert total_privacy_cost([run()], users=9000)["epsilon"] == 7.997595
    assert total_privacy_cost([{"privacy": None}, {}], users=9) is None


@pytest.mark.parametrize(
    ("about", "counted"),
    [
        ({"noise": "local"}, 2.0),
        ({"sampler": "uniform", "cohort": 3}, 2.0),
        ({"sampler": "uniform", "cohort": "all"}, 4.0),
        ({"sampler": "shuffled", "cohort": 20}, 4.0),
        ({"noise": "local", "counted_noise": 3.0}, 3.0),
    ],
)
def test_noise_of_earlier_results_is_counted_as_it_was(about, counted):
    found = total_privacy_cost([run(noise_multiplier=4.0, rate=1.0, releases=1, **about)] * 2, users=20)
    assert found["epsilon_rdp"] == compute_epsilon({Release(1.0, counted): 2}, delta=1e-5, accountant="rdp")


def test_of_different_deltas_the_smallest_is_used():
    assert total_privacy_cost([run(releases=1, delta=delta) for delta in (1e-5, 1e-6)], users=9000)["delta"] == 1e-6


def test_without_the_accounting_library_no_total_is_claimed(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert (
        total_privacy_cost([run(releases=3)] * 2, users=9000) is None
        and total_privacy_cost([run()], users=9000) is not None
    )
