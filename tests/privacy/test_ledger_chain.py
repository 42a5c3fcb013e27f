"""The hash chain of a ledger: removed, changed and moved lines are detected."""

import json
from collections import Counter

import pytest

from homespun.privacy.accounting import Release
from homespun.privacy.ledger import Ledger, LedgerError

ROUND = Release(0.1, 2.0)
BROKEN = "breaks the hash chain"


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path / "votes.csv.privacy.jsonl", "votes")
    for run in "abcd":
        made.debit(ROUND, run=run)
    return made


def rewritten(ledger, change):
    """The same ledger, as another process reads it after its lines were changed."""
    ledger.path.write_bytes(b"".join(change(ledger.path.read_bytes().splitlines(keepends=True))))
    return Ledger(ledger.path, "votes")


CHANGES = {
    "removed": lambda lines: [*lines[:2], *lines[3:]],
    "removed in front": lambda lines: [lines[0], *lines[2:]],
    "swapped": lambda lines: [*lines[:2], lines[3], lines[2], lines[4]],
    "repeated": lambda lines: [*lines, lines[-1]],
    "edited": lambda lines: [*lines[:2], lines[2].replace(b"2.0", b"9.0"), *lines[3:]],
    "unchained": lambda lines: [*lines, b'{"release": {"rate": 0.1, "noise_multiplier": 2.0}, "run": "x"}\n'],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_line_that_was_removed_changed_or_moved_is_an_error(ledger, change):
    found = rewritten(ledger, change)
    before = found.path.read_bytes()
    for attempt in (found.spent, lambda: found.debit(ROUND, run="e"), lambda: found.reset("votes")):
        with pytest.raises(LedgerError, match=BROKEN):
            attempt()
    assert found.path.read_bytes() == before


def test_a_line_that_is_removed_during_a_run_is_an_error(ledger):
    rewritten(ledger, lambda lines: lines[:-1])
    with pytest.raises(LedgerError, match="lines were removed or changed while it was in use"):
        ledger.debit(ROUND, run="d")


def test_an_incomplete_last_line_is_not_part_of_the_chain(ledger):
    whole = ledger.path.read_bytes()
    found = rewritten(ledger, lambda lines: [*lines, lines[-1][:20]])
    assert found.spent() == Counter({ROUND: 4})
    found.debit(ROUND, run="e")
    assert Ledger(ledger.path, "votes").spent() == Counter({ROUND: 5}) and ledger.path.read_bytes().startswith(whole)


def test_lines_of_an_earlier_version_are_covered_by_the_first_new_one(tmp_path):
    path = tmp_path / "old.jsonl"
    old = [{"data": "votes", "at": "2025-01-01T00:00:00+00:00"}]
    old += [{"release": vars(ROUND), "run": run, "at": "2025-01-01T00:00:00+00:00"} for run in "ab"]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    Ledger(path, "votes").debit(ROUND, run="c")
    assert Ledger(path, "votes").spent() == Counter({ROUND: 3})
    for change in (lambda lines: [lines[0], *lines[2:]], lambda lines: [lines[0], lines[2], lines[1], lines[3]]):
        whole = path.read_bytes()
        with pytest.raises(LedgerError, match=f"line [34] {BROKEN}"):
            rewritten(Ledger(path, "votes"), change).spent()
        path.write_bytes(whole)


def test_a_line_has_the_adjacency_and_the_date_without_the_time(ledger):
    """The duration of a round reveals the size of its cohort."""
    line = json.loads(ledger.path.read_text().splitlines()[1])
    assert line["adjacency"] == "zero-out" and len(line["at"]) == len("2025-01-01") and len(line["chain"]) == 64
