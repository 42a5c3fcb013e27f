"""Escape sequences in names and texts never reach the terminal."""

import ast
import io
import json
import sys
from pathlib import Path

import pytest

import homespun
from homespun import cli, load, train
from homespun.cli.console import bar, table
from homespun.core.escaping import escape_unprintable, name_candidates
from homespun.methods.furl import SMALL
from homespun.report.prompt_continuations import Continuation, print_showcase
from homespun.system.terminal import Terminal, say

EVIL, SPELLED = "\x1b]0;owned\x07\x1b[2J", r"\x1b]0;owned\x07\x1b[2J"


def run_command(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["homespun", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err and "\x07" not in printed.out + printed.err
    return ended.value.code, printed


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain Zoë 日本 \N{NO-BREAK SPACE}!\n\ttab", "plain Zoë 日本 \N{NO-BREAK SPACE}!\n\ttab"),
        ("\x1b[2J\x00\r\x7f\x9b", r"\x1b[2J\x00\x0d\x7f\x9b"),
        ("\u202eabc\u2028\ud800", r"\u202eabc\u2028\ud800"),
        ("\U000e0001", r"\U000e0001"),
        (r"C:\x00", r"C:\x00"),
    ],
)
def test_escape_sequences_are_escaped(text, shown):
    assert escape_unprintable(text) == shown
    assert text in name_candidates(shown)  # so it can be typed as it is shown


def test_a_table_on_a_terminal(monkeypatch):
    out = Terminal(file=io.StringIO(), force_terminal=True, width=200, markup=False, highlight=False)
    out.print(table(f"title {EVIL}", ("user", f"head {EVIL}"), [(f"name {EVIL}", f"cell {EVIL}")]), EVIL)
    shown = out.file.getvalue()
    assert shown.count(SPELLED) == 5 and "\x1b]" not in shown and "\x1b[2J" not in shown and "\x07" not in shown
    assert "\x1b[1m" in shown  # its own commands are still there


def test_a_progress_bar_on_a_terminal():
    out = Terminal(file=io.StringIO(), force_terminal=True, width=200)
    with bar(out) as progress:
        progress.add_task(f"run {EVIL}", total=2, note=f"note {EVIL}")
    shown = out.file.getvalue()
    assert r"run \x1b]0;" in shown and r"note \x1b]0;" in shown
    assert "\x1b]" not in shown and "\x07" not in shown


def test_a_showcase(capsys):
    print_showcase([Continuation(f"We {EVIL}", f"ada {EVIL}", f"spoken {EVIL}", True, f"must {EVIL}")])
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and r"\x1b" in shown


def test_errors_of_a_command_are_spelled_out(monkeypatch, capsys, tmp_path):
    train("furl", load("dialects", users=5, examples=10), folder=tmp_path / "run", rounds=1, workers=0, **SMALL).close()
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    settings["data"] = {"source": f"{EVIL}.csv"}
    (tmp_path / "run" / "settings.json").write_text(json.dumps(settings))
    code, printed = run_command(monkeypatch, capsys, "evaluate", tmp_path / "run")
    assert code == 2 and SPELLED in printed.err
    code, printed = run_command(monkeypatch, capsys, "evaluate", tmp_path / f"no {EVIL}")
    assert code == 2 and SPELLED in printed.err
    code, printed = run_command(monkeypatch, capsys, f"no such command {EVIL}")
    assert code == 2 and "No such command" in printed.err


def test_what_went_wrong_unexpectedly_is_spelled_out_too(monkeypatch, capsys):
    def fails(**_):
        raise ValueError(EVIL)

    monkeypatch.setattr(cli, "app", fails)
    code, printed = run_command(monkeypatch, capsys)
    assert code == 1 and "Traceback" in printed.err and SPELLED in printed.err


def test_titles_and_names_of_a_finished_comparison_are_spelled_out(monkeypatch, capsys, tmp_path):
    rows = [f"{name},good day {day},{'ab'[day % 2]}" for name in ("ann", "bob", "cem") for day in range(10)]
    (tmp_path / "posts.csv").write_text("\n".join(["user,text,label", *rows]).replace("ann", f"ann{EVIL}") + "\n")
    small = "\n".join(f"{name} = {value}" for name, value in SMALL.items())
    (tmp_path / "one.toml").write_text(
        f"name = {json.dumps(EVIL)}\n[data]\nsource = 'posts.csv'\n[settings]\nrounds = 1\nworkers = 0\n{small}\n"
        f"[configurations.one]\nmethod = 'furl'\ntitle = {json.dumps(EVIL)}\n"
    )
    code, printed = run_command(monkeypatch, capsys, "compare", "one.toml", "--folder", "both")
    assert code == 0 and SPELLED in printed.out
    for arguments in (["data", "show", "posts.csv"], ["data", "check", "posts.csv"], ["report", "both"]):
        assert run_command(monkeypatch, capsys, *arguments)[0] == 0
    code, printed = run_command(monkeypatch, capsys, "vault", "list", "both/runs/one/seed-0")
    assert code == 0 and SPELLED in printed.out.replace("\n", "")


def test_one_module_prints():
    """All other modules print through it."""
    root = Path(homespun.__file__).parent
    found = [
        f"{path.relative_to(root)}:{node.lineno}"
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "Console")
        if path.name != "terminal.py"
    ]
    assert found == []


def test_say(capsys):
    say(EVIL)
    say(EVIL, to=sys.stderr)
    assert tuple(capsys.readouterr()) == (SPELLED + "\n", SPELLED + "\n")
