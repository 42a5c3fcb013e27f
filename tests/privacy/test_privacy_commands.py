"""`homespun privacy` and a private run from the command line."""

import json

import pytest
from typer.testing import CliRunner

from homespun.cli import app
from homespun.core.errors import RunError, SettingsError, UnknownNameError
from homespun.methods.furl import SMALL
from homespun.privacy.ledger import BudgetError, LedgerError


def homespun(*words, fails=None):
    found = CliRunner().invoke(app, [str(word) for word in words], standalone_mode=False)
    if fails is None:
        assert found.exception is None, found.exception
        return found.stdout
    assert isinstance(found.exception, fails), found.exception
    return str(found.exception)


def test_cost_of_the_first_reference_value():
    found = json.loads(homespun("privacy", "cost", "--rounds", 100, "--rate", 1, "--noise-multiplier", 10, "--json"))
    assert (found["pld"], found["rdp"]) == pytest.approx((4.377179, 4.728507), abs=1e-3)
    assert "either" in homespun("privacy", "cost", "--rounds", 1, "--rate", 1, fails=SettingsError)


def test_the_error_for_a_missing_ledger_names_other_places(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    said = homespun("privacy", "show", "digits", fails=UnknownNameError)
    assert "If the corpus was read from a folder, give that folder instead." in said and "--ledger" in said


def test_an_insecure_run_is_marked_and_a_finished_run_names_the_options(tmp_path):
    settings = {**SMALL, "rounds": 1, "cohort": 20, "workers": 0, "sampler": "poisson", "privacy.epsilon": 4,
                "privacy.delta": 0.01, "privacy.insecure": "true", "privacy.ledger": tmp_path / "ledger"}  # fmt: skip
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    corpus = ("--data", "dialects", "--data-set", "users=20", "--data-set", "examples=10")
    command = ["train", "furl", *corpus, "--folder", tmp_path / "run", *words]
    assert "INSECURE" in CliRunner().invoke(app, list(map(str, command))).stderr
    again = homespun(*command, fails=RunError)
    # twice the rounds with the same noise would exceed the epsilon of the settings
    assert "its noise was computed for this many rounds" in again and "--rounds" not in again


def test_a_run_stopped_by_its_budget_has_a_report_of_its_rounds(tmp_path):
    settings = {**SMALL, "rounds": 5, "cohort": 10, "workers": 0, "sampler": "poisson", "privacy.noise_multiplier": 2,
                "privacy.delta": 0.01, "privacy.budget": 0.8, "privacy.ledger": tmp_path / "ledger"}  # fmt: skip
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    corpus = ("--data", "dialects", "--data-set", "users=20", "--data-set", "examples=10")
    for folder, paid in (("run", True), ("other", False)):  # for the second run nothing is left
        stopped = homespun("train", "furl", *corpus, "--folder", tmp_path / folder, *words, fails=BudgetError)
        assert "its privacy budget is spent" in stopped
        assert (tmp_path / folder / "report.html").exists() == paid
    (done,) = json.loads((tmp_path / "run" / "results.json").read_text())["configurations"]["furl"]["runs"]
    assert 0 < done["privacy"]["releases"] == len(done["rounds"]) < 5 and done["privacy"]["epsilon"] <= 0.8


def test_a_private_run_is_recorded_next_to_its_data_and_can_be_reset(tmp_path):
    rows = [f"user{user},good day number {row},{'ab'[row % 2]}" for user in range(6) for row in range(10)]
    data = tmp_path / "notes.csv"
    data.write_text("user,text,label\n" + "\n".join(rows) + "\n")
    settings = {**SMALL, "rounds": 2, "cohort": 3, "workers": 0, "sampler": "poisson", "privacy.noise_multiplier": 2,
                "privacy.delta": 0.01, "privacy.clip": 0.5}  # fmt: skip
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    assert "no such ledger" in homespun("privacy", "show", data, fails=UnknownNameError)
    homespun("train", "furl", "--data", data, "--folder", tmp_path / "run", *words)
    shown = homespun("privacy", "show", data, "--delta", 0.01)
    assert "2 rounds with noise multiplier 2 and sampling rate 0.5" in shown
    name = shown.partition(":")[0]
    assert "Nothing was changed" in homespun("privacy", "reset", data, "--name", "other", fails=UnknownNameError)
    assert "spending reset to zero" in homespun("privacy", "reset", data, "--name", name, "--reason", "a test")
    assert json.loads(homespun("privacy", "show", data, "--json"))["epsilon"] == 0.0
    (tmp_path / "notes.csv.privacy.jsonl").write_text("nonsense\n")
    assert "first line cannot be read" in homespun("privacy", "show", data, fails=LedgerError)
    wrong = homespun("train", "furl", "--data", data, "--folder", tmp_path / "x", "--set", "rounds=1",
                     "--set", "privacy.epsilom=1", fails=SettingsError)  # fmt: skip
    assert "unknown setting 'privacy.epsilom'. Did you mean 'privacy.epsilon'?" in wrong
