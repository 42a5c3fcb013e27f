"""Spending on one data set adds up over runs, kills and processes."""

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from homespun.core.errors import RunError, UnknownNameError
from homespun.data.source import DataSettings
from homespun.privacy import lines as module
from homespun.privacy.accounting import Release, compute_epsilon
from homespun.privacy.ledger import Budget, BudgetError, Ledger, LedgerError, ledger_path

ROUND, OTHER = Release(0.1, 2.0), Release(0.2, 1.5)


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "votes.csv.privacy.jsonl", "votes")


def test_twenty_rounds_and_thirty_after_a_resume_are_fifty(ledger):
    for _ in range(20):
        ledger.debit(ROUND, run="a")
    again = Ledger(ledger.path, "votes")
    for _ in range(30):
        again.debit(ROUND, run="a")
    assert again.spent() == Counter({ROUND: 50})
    assert compute_epsilon(again.spent(), delta=1e-5) == compute_epsilon({ROUND: 50}, delta=1e-5)


def test_runs_add_up_until_a_reset_by_name(ledger):
    ledger.debit(ROUND, run="a")
    ledger.debit(OTHER, run="b")
    assert ledger.spent() == Counter({ROUND: 1, OTHER: 1})
    with pytest.raises(UnknownNameError, match="ledger of 'votes', not of 'vots'"):
        ledger.reset("vots")
    assert len(ledger.spent()) == 2
    ledger.reset("votes", reason="new consent")
    assert ledger.spent() == Counter()
    ledger.debit(OTHER, run="c")
    assert ledger.spent() == Counter({OTHER: 1})
    lines = [json.loads(line) for line in ledger.path.read_text().splitlines()]
    assert [next(iter(line)) for line in lines] == [
        "data",
        "release",
        "release",
        "reset",
        "release",
    ]  # append-only


def test_the_round_that_would_exceed_the_budget_is_not_debited(ledger):
    budget = Budget(compute_epsilon({ROUND: 3, OTHER: 1}, delta=1e-5) + 1e-6, delta=1e-5)
    ledger.debit(OTHER, run="a", budget=budget)
    ledger.debit(ROUND, run="b", budget=budget)
    Ledger(ledger.path, "votes").debit(ROUND, run="c", budget=budget)  # another process
    ledger.debit(ROUND, run="b", budget=budget)
    for _ in range(2):
        with pytest.raises(BudgetError, match=r"budget is spent.*The model is unchanged"):
            ledger.debit(ROUND, run="b", budget=budget)
    assert ledger.spent() == Counter({ROUND: 3, OTHER: 1})


def test_an_incomplete_last_line_is_ignored(ledger):
    ledger.debit(ROUND, run="a")
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole + whole.splitlines()[-1][:20])
    assert ledger.spent() == Counter({ROUND: 1})
    ledger.debit(ROUND, run="a")
    assert ledger.spent() == Counter({ROUND: 2}) and ledger.path.read_bytes().startswith(whole)


@pytest.mark.parametrize("damage", [b"{", b"[]", b"{}", b"\xff\xfe", b""])
def test_an_unreadable_line_is_an_error(ledger, damage):
    for _ in range(3):
        ledger.debit(ROUND, run="a")
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    ledger.path.write_bytes(b"".join([*lines[:2], damage + b"\n", *lines[3:]]))
    before = ledger.path.read_bytes()
    later = Ledger(ledger.path, "votes")
    for attempt in (later.spent, lambda: later.debit(ROUND, run="a"), lambda: later.reset("votes")):
        with pytest.raises(LedgerError, match="line 3 cannot be read"):
            attempt()
    assert ledger.path.read_bytes() == before


def test_the_ledger_of_other_data_is_rejected(ledger):
    ledger.debit(ROUND, run="a")
    with pytest.raises(RunError, match="ledger of 'votes', not of 'letters'"):
        Ledger(ledger.path, "letters").debit(ROUND, run="a")


def test_without_a_writable_ledger_no_release_is_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LedgerError, match="no release is made"):
        Ledger(tmp_path / "file" / "x.jsonl", "votes").debit(ROUND, run="a")


def test_the_line_is_on_disk_before_the_debit_returns(ledger, monkeypatch):
    written = []
    monkeypatch.setattr(module.os, "fsync", lambda handle: written.append(ledger.path.read_bytes().count(b"\n")))
    ledger.debit(ROUND, run="a")
    assert written[-1] == 2


SPENDER = """
import sys
from homespun.privacy.accounting import Release
from homespun.privacy.ledger import Ledger
from pathlib import Path
ledger = Ledger(Path(sys.argv[1]), "votes")
while True:
    ledger.debit(Release(0.1, 2.0), run=sys.argv[2])
    print("released", flush=True)
"""


@pytest.mark.system
def test_after_a_kill_every_release_has_its_debit(ledger):
    processes = [
        subprocess.Popen([sys.executable, "-c", SPENDER, ledger.path, str(one)], stdout=subprocess.PIPE)
        for one in range(2)
    ]
    deadline = time.monotonic() + 100

    def fewest():  # debits of the slower of the two processes
        lines = ledger.path.read_text() if ledger.path.exists() else ""
        return min(lines.count(f'"run": "{one}"') for one in range(2))

    while fewest() < 20 and time.monotonic() < deadline:
        time.sleep(0.05)
    released = []
    for process in processes:
        process.kill()
        released.append(process.communicate()[0].count(b"released"))
    debited = ledger.spent()[ROUND]
    assert min(released) > 0 and sum(released) <= debited <= sum(released) + len(processes)


def test_the_ledger_is_next_to_the_file_or_folder_of_the_data(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "own"))
    folder, file = tmp_path / "mnist", tmp_path / "posts.csv"
    folder.mkdir()
    file.touch()
    own = tmp_path / "own" / "homespun"
    for place, path in [
        (folder, tmp_path / "mnist.privacy.jsonl"),
        (file, tmp_path / "posts.csv.privacy.jsonl"),
        (None, own / "digits.privacy.jsonl"),
        (tmp_path / "not there", own / "digits.privacy.jsonl"),
    ]:
        assert ledger_path("digits", place=place, named=None) == path
        assert ledger_path("digits", place=place, named="elsewhere") == Path("elsewhere")


def test_affordable_rounds_are_computed_for_each_release_and_budget(ledger):
    ledger.debit(ROUND, run="a", budget=Budget(1.0, 1e-5))
    with pytest.raises(BudgetError):
        ledger.debit(Release(1.0, 0.3), run="a", budget=Budget(1.0, 1e-5))
    ledger.debit(ROUND, run="b", budget=Budget(1.0, 1e-5))
    ledger.set_budget(Budget(1e-9, 1e-5), name="votes")
    with pytest.raises(BudgetError):
        ledger.debit(ROUND, run="a")
    assert ledger.debits(run="a") == ledger.debits(run="b") == 1


@pytest.mark.parametrize("release", [1, {"rate": 0.1}, {"rate": 5.0, "noise_multiplier": 1.0}, {"rate": "a"}])
def test_an_invalid_release_is_damage(ledger, release):
    ledger.debit(ROUND, run="a")
    with ledger.path.open("a") as file:
        file.write(json.dumps({"release": release, "run": "a"}) + "\n")
    with pytest.raises(LedgerError, match="line 3 cannot be read"):
        ledger.spent()


def test_a_run_on_a_folder_can_be_opened_from_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "mnist").mkdir()
    monkeypatch.chdir(tmp_path)
    found = DataSettings(source="digits", settings={"folder": "mnist"}).resolved()
    assert found.settings["folder"] == str(tmp_path / "mnist")
    assert DataSettings(source="digits", settings={"folder": "not there"}).resolved().settings["folder"] == "not there"


def test_insecure_rounds_are_counted_separately(tmp_path):
    ledger = Ledger(tmp_path / "votes.privacy.jsonl", "votes")
    ledger.debit(ROUND, run="a", insecure=True)
    ledger.reset("votes")
    ledger.debit(ROUND, run="a", insecure=True)
    ledger.debit(ROUND, run="a")
    assert ledger.insecure() == 1 and ledger.spent() == {ROUND: 2}
