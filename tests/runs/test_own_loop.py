"""A user's loop over `run.rounds()`: the run can be reopened, however early the loop ends."""

import json

import pytest

from homespun import load, reopen
from homespun.core.errors import RunError, SettingsError
from homespun.methods.furl import SMALL
from homespun.runs.open_run import open_run
from homespun.runs.settings import RunSettings
from homespun.runs.training import prepare

SETTINGS = {"rounds": 4, "workers": 0, "withheld": 0.2, **SMALL}


def corpus():
    return load("dialects", users=10, examples=10)


def made(folder, **settings):
    return prepare("furl", corpus(), folder=folder, settings={**SETTINGS, **settings})


def kept(folder):
    return json.loads((folder / "settings.json").read_text(encoding="utf-8"))


def test_a_loop_that_breaks_leaves_a_run_that_reopens(tmp_path):
    with made(tmp_path / "run") as run:
        for record in run.rounds():
            if record.round == 2:
                break
    with reopen(tmp_path / "run") as run:
        # the second round was not asked to be kept: a round is on disk when the next one is asked for
        assert run.state.round in (1, 2) and run.total_rounds == 4
        assert run.data.source == "dialects"


def test_a_run_reopens_before_its_first_round(tmp_path):
    with made(tmp_path / "prepared"):
        pass
    settings = RunSettings(rounds=3, workers=0)
    with open_run(tmp_path / "opened", method="furl", federation=corpus(), settings=settings, method_settings=SMALL):
        pass
    for name, rounds in (("prepared", 4), ("opened", 3)):
        with reopen(tmp_path / name) as run:
            assert (run.state.round, run.total_rounds) == (0, rounds)


def test_the_settings_of_a_run_with_more_rounds_are_updated(tmp_path):
    for rounds in (1, 3):
        with made(tmp_path / "run", rounds=rounds) as run:
            list(run.rounds())
        assert kept(tmp_path / "run")["run"]["rounds"] == rounds
    with made(tmp_path / "run", rounds=2):  # it has more already
        pass
    assert kept(tmp_path / "run")["run"]["rounds"] == 3


def test_a_rejected_run_writes_no_settings(tmp_path):
    too_little_noise = {"noise_multiplier": 0.01, "clip": 1.0, "delta": 1e-5, "noise": "local"}
    refused = [{"cohort": 0}, {"raet": 1.0}, {"privacy": too_little_noise}]
    for settings in refused:
        with pytest.raises(SettingsError):
            made(tmp_path / "run", **settings)
        assert not (tmp_path / "run" / "settings.json").exists()
        assert not (tmp_path / "run" / "vault.sqlite").exists()
    with made(tmp_path / "run"):
        before = (tmp_path / "run" / "settings.json").read_bytes()
    with pytest.raises(RunError, match="different run"):
        made(tmp_path / "run", lr=0.7)
    assert (tmp_path / "run" / "settings.json").read_bytes() == before
