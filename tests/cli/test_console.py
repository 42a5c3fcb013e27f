"""Tables in a narrow terminal, and progress with a terminal and without."""

import io

import pytest
from rich.console import Console

from homespun.cli import console
from homespun.cli.console import Reporter, table
from homespun.core.progress import Progress
from homespun.data import load_federation
from homespun.methods.furl import SMALL
from homespun.runs.evaluate import evaluate
from homespun.runs.training import prepare, training


def printed(made, *, width):
    plain = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    plain.print(made)
    return plain.file.getvalue()


def test_columns_without_room_go_on_below_and_no_number_is_broken(monkeypatch):
    monkeypatch.setattr(console, "out", Console(file=io.StringIO(), width=40))
    numbers = [f"{place}7.51 ± 12.84" for place in range(1, 5)]
    made = printed(table("Newcomers", ["Own", "a, %", "b, %", "c, %", "d, %"], [["20", *numbers]]), width=40)
    assert all(number in made for number in numbers) and made.count("Own") == 2 and made.count("Newcomers") == 1
    assert max(map(len, made.splitlines())) <= 40


def reporter(monkeypatch, *, terminal):
    """A reporter, and what it wrote."""
    written = Console(file=io.StringIO(), width=80, force_terminal=terminal, highlight=False, markup=False)
    monkeypatch.setattr(console, "out", written)
    return Reporter(title="furl"), written.file


def test_without_a_terminal_a_line_follows_after_some_seconds_of_work(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    shown, _ = reporter(monkeypatch, terminal=False)
    for second in range(26):
        now[0] = float(second)
        shown.stretch(Progress("new users with 5 own samples", second, 50))
    now[0] = 27.0
    shown.stretch(Progress("eval part", 0, 50))  # the last line is 7 seconds old
    assert capsys.readouterr().out.splitlines() == [
        "furl: new users with 5 own samples: 20 %, 40 s left",
        "furl: new users with 5 own samples: 40 %, 30 s left",
    ]


def test_hours_of_work_do_not_fill_a_log(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    shown, _ = reporter(monkeypatch, terminal=False)
    for second in range(10 * 3600):
        now[0] = float(second)
        shown.stretch(Progress("eval part", second, 36001))
    lines = capsys.readouterr().out.splitlines()
    assert 100 < len(lines) < 150 and lines[0].startswith("furl: eval part: 0 %, ")


def test_on_a_terminal_a_bar_comes_and_goes(monkeypatch):
    shown, written = reporter(monkeypatch, terminal=True)
    with shown:
        shown.stretch(Progress("new users with 5 own samples", 0, 50))
        shown.stretch(Progress("new users with 5 own samples", 25, 50))
        assert shown._bars is not None
        shown.stretch(Progress("new users with 5 own samples", 50, 50))
        assert shown._bars is None
        shown.stretch(Progress("eval part", 1, 50))  # and never ends
    assert shown._bars is None
    assert "new users with 5 own samples" in written.getvalue() and "eval part" in written.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_its_evaluations_and_what_follows(monkeypatch, capsys, terminal):
    monkeypatch.setattr(console, "QUIET_S", 0.0)
    monkeypatch.setattr(console, "LINES", 10**9)
    shown, written = reporter(monkeypatch, terminal=terminal)
    settings = {**SMALL, "rounds": 2, "cohort": 3, "workers": 0}
    federation = load_federation("dialects", settings={"users": 4, "examples": 10})
    with shown, prepare("furl", federation, folder=None, settings=settings, progress=shown.stretch) as run:
        with shown.following(run, "furl") as show:
            for event in training(run):
                show(event)
        evaluate(run)
    lines = (written.getvalue() if terminal else capsys.readouterr().out).splitlines()
    said = "\n".join(lines)
    assert "eval part" in said and "test part" in said and "2/2" in said
    if not terminal:
        after = lines.index("furl: final evaluation")
        assert "round 2/2" in "".join(lines[:after]) and lines[after + 1] == "furl: test part: 0 %"
        assert lines[-1] == "furl: test part: 100 %, 0 s left"
