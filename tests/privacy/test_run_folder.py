"""What a private run's folder does not say: who came to which round, and how many."""

import json
from math import isnan

import pytest
from notes import opened, write_csv
from test_privacy_commands import homespun

from homespun.experiments.results import summary


def listed(folder):
    return json.loads(homespun("vault", "list", folder, "--json"))["entries"]


def test_nothing_says_in_which_round_a_user_was_drawn(tmp_path):
    data = write_csv(tmp_path / "notes.csv")
    with opened(tmp_path / "run", data, settings={"cohort": 7}) as run:
        list(run.rounds())
        assert {entry.round for entry in run.vault.entries()} == {0} and run.vault.round == 3
        history = run.history()
    assert listed(tmp_path / "run") and all(entry.keys() == {"user", "bytes"} for entry in listed(tmp_path / "run"))
    assert all(isnan(entry["seconds"]) for entry in history if entry["kind"] == "round")


@pytest.mark.parametrize("public", [{"private": False}, {"noise": "local"}, {"insecure": True}])
def test_where_cohorts_are_known_the_round_is_shown(tmp_path, public):
    with opened(tmp_path / "run", write_csv(tmp_path / "notes.csv"), settings={"cohort": 7}, **public) as run:
        list(run.rounds())
    assert max(entry["round"] for entry in listed(tmp_path / "run")) == 3


def test_runs_that_do_not_say_how_long_they_took_are_summed_up():
    """As results.json has them: null where there is no number."""
    one = {"metric": "accuracy", "value": 0.5, "user_mean": 0.5, "user_worst_tenth": 0.5, "loss": 1.0}
    run = {"seed": 0, "eval": one, "test": one, "adapted": {}, "newcomers": {}, "rounds": [{"seconds": None}]}
    assert isnan(summary([run])["seconds_per_round"]["mean"])
