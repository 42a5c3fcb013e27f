"""The budget belongs to the data set: no run can exceed it."""

import json

import pytest
from notes import ROUND, opened, write_csv
from test_privacy_commands import homespun

from homespun.core.errors import SettingsError, UnknownNameError
from homespun.privacy.accounting import compute_epsilon
from homespun.privacy.ledger import Budget, BudgetError, Ledger, LedgerError

TWO = compute_epsilon({ROUND: 2}, delta=0.01) + 1e-6  # has room for two rounds of `opened`


@pytest.fixture
def data(tmp_path):
    return write_csv(tmp_path / "notes.csv")


def ledger_of(data):
    return Ledger(data.with_name(data.name + ".privacy.jsonl"), "notes.csv")


def test_a_run_sets_the_budget_once_and_it_holds_for_all_others(data):
    with opened(data.parent / "first", data, budget=TWO) as run, pytest.raises(BudgetError, match="budget is spent"):
        list(run.rounds())
    assert ledger_of(data).budget() == Budget(TWO, 0.01) and ledger_of(data).spent() == {ROUND: 2}
    with opened(data.parent / "second", data) as run, pytest.raises(BudgetError, match="one more round would exceed"):
        run.step()
    assert ledger_of(data).spent() == {ROUND: 2}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"budget": 100.0}, r"asks for a budget of epsilon 100 at delta 0.01. Remove privacy.budget"),
        ({"budget": TWO, "delta": 0.1}, r"asks for a budget of .* at delta 0.1\."),
        ({"delta": 0.1}, r"asks for delta 0.1. Set privacy.delta=0.01"),
    ],
)
def test_a_budget_or_delta_that_differs_from_the_data_sets_is_rejected(data, asked, said):
    ledger_of(data).set_budget(Budget(TWO, 0.01), name="notes.csv")
    with pytest.raises(SettingsError, match=said):
        opened(data.parent / "second", data, **asked)
    assert not (data.parent / "second" / "vault.sqlite").exists()


def test_a_resumed_run_cannot_set_its_own_budget(data):
    with opened(data.parent / "run", data) as run:
        run.step()
        run.commit()
    ledger_of(data).set_budget(Budget(TWO, 0.01), name="notes.csv")
    with (
        opened(data.parent / "run", data, budget=100.0) as run,
        pytest.raises(SettingsError, match=r"Remove privacy\.budget"),
    ):
        run.step()


def test_changing_the_budget_needs_the_name_of_the_data(data):
    ledger_of(data).set_budget(Budget(TWO, 0.01), name="notes.csv")
    change = ["privacy", "budget", data, "--epsilon", 100, "--delta", 0.01, "--reason", "all agreed"]
    assert "Nothing was changed" in homespun(*change, "--name", "other", fails=UnknownNameError)
    assert "budget set to epsilon 100 at delta 0.01" in homespun(*change, "--name", "notes.csv")
    assert ledger_of(data).budget() == Budget(100.0, 0.01)
    lines = [json.loads(line) for line in ledger_of(data).path.read_text().splitlines()]
    assert [line["budget"]["epsilon"] for line in lines if "budget" in line] == [TWO, 100.0]
    assert "either" in homespun("privacy", "budget", data, "--name", "notes.csv", fails=SettingsError)


def test_a_budget_can_be_set_before_the_first_run_and_a_reset_keeps_it(data):
    homespun("privacy", "budget", data, "--epsilon", 1e-3, "--delta", 0.01, "--name", "notes.csv")
    homespun("privacy", "reset", data, "--name", "notes.csv")
    with opened(data.parent / "run", data) as run, pytest.raises(BudgetError, match=r"would exceed 0\.001"):
        run.step()


# ---- runs without privacy


def test_a_run_without_privacy_is_rejected_if_there_is_a_budget(data):
    homespun("privacy", "budget", data, "--epsilon", 8, "--delta", 0.01, "--name", "notes.csv")
    with pytest.raises(BudgetError, match=r"which a run without privacy would exceed.*--lift"):
        opened(data.parent / "plain", data, private=False)
    assert not (data.parent / "plain" / "vault.sqlite").exists() and ledger_of(data).unprotected() == 0
    homespun("privacy", "budget", data, "--lift", "--name", "notes.csv")
    with opened(data.parent / "plain", data, private=False) as run:
        run.step()
    assert ledger_of(data).unprotected() == 1


def test_a_run_without_privacy_is_in_the_ledger_as_infinite(data):
    with opened(data.parent / "private", data) as run:
        run.step()
    with opened(data.parent / "plain", data, private=False) as run:
        assert ledger_of(data).unprotected() == 0  # opened is not trained
        run.step()
        run.step()
    assert ledger_of(data).unprotected() == 1
    shown = homespun("privacy", "show", data, "--delta", 0.01)
    assert "notes.csv: epsilon infinite at delta 0.01 (PLD" in shown and "runs without privacy: 1;" in shown
    found = json.loads(homespun("privacy", "show", data, "--delta", 0.01, "--json"))
    assert 0 < found["pld"] < found["rdp"] and found["adjacency"] == "zero-out"
    assert found["epsilon"] is None and found["epsilon_of_private_runs"] == pytest.approx(
        compute_epsilon({ROUND: 1}, delta=0.01)
    )
    with (
        opened(data.parent / "late", data, budget=8.0) as run,
        pytest.raises(BudgetError, match="is spent: epsilon inf"),
    ):
        run.step()


def test_a_run_without_privacy_creates_no_ledger(data):
    with opened(data.parent / "plain", data, private=False) as run:
        run.step()
    assert not ledger_of(data).path.exists() and not (data.parent / ".own").exists()


# ---- missing lines


def test_fewer_debits_than_rounds_are_an_error_when_a_run_resumes(data):
    with opened(data.parent / "run", data) as run:
        run.step()
        run.step()
        run.commit()
    path = ledger_of(data).path
    (data.parent / ".own").rename(data.parent / "another machine's")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))  # a whole chain of one round
    with (
        opened(data.parent / "run", data) as run,
        pytest.raises(LedgerError, match=r"2 releases in 2 rounds, but only 1 are recorded"),
    ):
        run.step()
    path.unlink()
    with opened(data.parent / "run", data) as run, pytest.raises(LedgerError, match="but only 0 are recorded"):
        run.step()


def test_no_error_suggests_a_second_ledger(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LedgerError, match="cannot be written") as caught:
        Ledger(tmp_path / "file" / "x.jsonl", "votes").debit(ROUND, run="a")
    assert "another" not in str(caught.value) and "privacy.ledger" not in str(caught.value)
