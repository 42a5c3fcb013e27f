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
from homespun.runs.training import prepare, train_and_evaluate


def printed(made, *, width):
    plain = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    plain.print(made)
    return plain.file.getvalue()


def test_columns_that_do_not_fit_are_continued_below_without_broken_numbers(monkeypatch):
    monkeypatch.setattr(console, "out", Console(file=io.StringIO(), width=40))
    numbers = [f"{place}7.51 ± 12.84" for place in range(1, 5)]
    made = printed(table("Newcomers", ["Own", "a, %", "b, %", "c, %", "d, %"], [["20", *numbers]]), width=40)
    assert all(number in made for number in numbers) and made.count("Own") == 2 and made.count("Newcomers") == 1
    assert max(map(len, made.splitlines())) <= 40


def reporter(monkeypatch, *, terminal):
    """A reporter and its output."""
    written = Console(file=io.StringIO(), width=80, force_terminal=terminal, highlight=False, markup=False)
    monkeypatch.setattr(console, "out", written)
    return Reporter(title="furl"), written.file


def test_without_a_terminal_a_line_is_printed_every_few_seconds(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    shown, _ = reporter(monkeypatch, terminal=False)
    for second in range(26):
        now[0] = float(second)
        shown.show_progress(Progress("new users with 5 own samples", second, 50))
    now[0] = 27.0
    shown.show_progress(Progress("eval part", 0, 50))  # the last line is 7 seconds old
    assert capsys.readouterr().out.splitlines() == [
        "furl: new users with 5 own samples: 20 %, 40 s left",
        "furl: new users with 5 own samples: 40 %, 30 s left",
    ]


def test_long_runs_print_few_lines(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    shown, _ = reporter(monkeypatch, terminal=False)
    for second in range(10 * 3600):
        now[0] = float(second)
        shown.show_progress(Progress("eval part", second, 36001))
    lines = capsys.readouterr().out.splitlines()
    assert 100 < len(lines) < 150 and lines[0].startswith("furl: eval part: 0 %, ")


def test_on_a_terminal_a_bar_is_shown_and_removed(monkeypatch):
    shown, written = reporter(monkeypatch, terminal=True)
    with shown:
        shown.show_progress(Progress("new users with 5 own samples", 0, 50))
        shown.show_progress(Progress("new users with 5 own samples", 25, 50))
        assert shown._bars is not None
        shown.show_progress(Progress("new users with 5 own samples", 50, 50))
        assert shown._bars is None
        shown.show_progress(Progress("eval part", 1, 50))  # and is not finished
    assert shown._bars is None
    assert "new users with 5 own samples" in written.getvalue() and "eval part" in written.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_of_a_run_its_evaluations_and_later_tasks(monkeypatch, capsys, terminal):
    monkeypatch.setattr(console, "LINE_INTERVAL_S", 0.0)
    monkeypatch.setattr(console, "LINES", 10**9)
    shown, written = reporter(monkeypatch, terminal=terminal)
    settings = {**SMALL, "rounds": 2, "cohort": 3, "workers": 0}
    federation = load_federation("dialects", settings={"users": 4, "examples": 10})
    with shown, prepare("furl", federation, folder=None, settings=settings, progress=shown.show_progress) as run:
        with shown.following(run, "furl") as show:
            for event in train_and_evaluate(run):
                show(event)
        evaluate(run)
    lines = (written.getvalue() if terminal else capsys.readouterr().out).splitlines()
    said = "\n".join(lines)
    assert "eval part" in said and "test part" in said and "2/2" in said
    if not terminal:
        after = lines.index("furl: final evaluation")
        assert "round 2/2" in "".join(lines[:after]) and lines[after + 1] == "furl: test part: 0 %"
        assert lines[-1] == "furl: test part: 100 %, 0 s left"
