"""The folder of a private run does not reveal who took part in which round, nor how many."""

import json
from math import isnan

import pytest
from notes import opened, write_csv
from test_privacy_commands import homespun

from homespun.experiments.results import summary


def listed(folder):
    return json.loads(homespun("vault", "list", folder, "--json"))["entries"]


def test_the_folder_does_not_reveal_the_rounds_of_a_user(tmp_path):
    data = write_csv(tmp_path / "notes.csv")
    with opened(tmp_path / "run", data, settings={"cohort": 7}) as run:
        list(run.rounds())
        assert {entry.round for entry in run.vault.entries()} == {0} and run.vault.round == 3
        history = run.history()
    assert listed(tmp_path / "run") and all(entry.keys() == {"user", "bytes"} for entry in listed(tmp_path / "run"))
    assert all(isnan(entry["seconds"]) for entry in history if entry["kind"] == "round")


@pytest.mark.parametrize("public", [{"private": False}, {"noise": "local"}, {"insecure": True}])
def test_the_round_is_shown_if_cohorts_are_public(tmp_path, public):
    with opened(tmp_path / "run", write_csv(tmp_path / "notes.csv"), settings={"cohort": 7}, **public) as run:
        list(run.rounds())
    assert max(entry["round"] for entry in listed(tmp_path / "run")) == 3


def test_runs_without_times_are_summarized():
    """As in results.json: null for a missing number."""
    one = {"metric": "accuracy", "value": 0.5, "user_mean": 0.5, "user_worst_tenth": 0.5, "loss": 1.0}
    run = {"seed": 0, "eval": one, "test": one, "adapted": {}, "newcomers": {}, "rounds": [{"seconds": None}]}
    assert isnan(summary([run])["seconds_per_round"]["mean"])
