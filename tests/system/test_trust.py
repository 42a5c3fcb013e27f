"""A run folder is untrusted: it runs no code and downloads nothing that the user has not asked for."""

import importlib._bootstrap_external as bootstrap
import json
import sys
from importlib.util import cache_from_source
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from homespun import cli, evaluate, load, reopen, train
from homespun.cli import app
from homespun.core.errors import UntrustedError
from homespun.core.messages import state_to_bytes
from homespun.data import hub
from homespun.methods.furl import SMALL
from homespun.runs.training import prepare
from homespun.system import trust

ONE_ROUND = {"rounds": 1, "workers": 0, **SMALL}

# A custom method that leaves a mark wherever it runs.
MARKING = """
from pathlib import Path
from homespun.methods.furl import SMALL, Settings, method

Path({mark!r}).write_text({mark!r})
"""


def corpus():
    return load("dialects", users=6, examples=10)


def written(folder, name="own.py", mark="ran"):
    path = folder / name
    path.write_text(MARKING.format(mark=str(folder / mark)))
    return path


@pytest.fixture
def own(tmp_path):
    """A run of a custom method, with no trace on this machine except its folder and the method file."""
    path = written(tmp_path)
    train(str(path), corpus(), folder=tmp_path / "run", **ONE_ROUND).close()
    (tmp_path / "ran").unlink()
    return path


@pytest.fixture
def stranger(monkeypatch, tmp_path):
    """From here on, the machine of another user."""

    def arrive():
        new_process(monkeypatch)
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "elsewhere"))

    return arrive


def new_process(monkeypatch):
    monkeypatch.setattr(trust, "_session", set())


def settings_of(folder):
    return json.loads((folder / "settings.json").read_text(encoding="utf-8"))


def with_settings(folder, **values):
    (folder / "settings.json").write_text(json.dumps({**settings_of(folder), **values}), encoding="utf-8")


COMMANDS = {
    "report": [],
    "evaluate": [],
    "predict": ["some text", "--user", "user-000000"],
    "generate": ["We must"],
    "export": ["--output", "adapter"],
    "personalize": ["mine.csv", "--user", "ada"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_strangers_folder_runs_no_method_file(command, own, stranger, tmp_path):
    (tmp_path / "mine.csv").write_text("user,text,label\nada,hello,label-0\n")
    stranger()
    done = CliRunner().invoke(app, [command, str(tmp_path / "run"), *COMMANDS[command]])
    assert isinstance(done.exception, UntrustedError)
    assert str(own) in str(done.exception) and "--trust" in str(done.exception)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("command", ["evaluate", "predict", "report"])
def test_a_method_file_that_the_user_vouches_for_runs(command, own, stranger, tmp_path):
    stranger()
    arguments = [command, str(tmp_path / "run"), *COMMANDS[command]]
    done = CliRunner().invoke(app, [*arguments, "--trust", "own.py"], catch_exceptions=False)
    assert done.exit_code == 0 and (tmp_path / "ran").exists()
    # it holds for that command alone
    (tmp_path / "run" / "results.json").unlink(missing_ok=True)
    assert isinstance(CliRunner().invoke(app, arguments).exception, UntrustedError)


def test_the_user_who_trained_a_run_may_open_it_later(own, monkeypatch, tmp_path):
    new_process(monkeypatch)
    with reopen(tmp_path / "run") as run:
        assert evaluate(run).users > 0
    record = trust.record_path()
    assert record.stat().st_mode & 0o777 == 0o600
    assert tmp_path / "run" not in record.parents
    assert [json.loads(line)["name"] for line in record.read_text().splitlines()] == [str(own)]


def test_a_changed_file_is_not_trusted(own, monkeypatch, tmp_path):
    new_process(monkeypatch)
    own.write_text(own.read_text() + "\n")
    with pytest.raises(UntrustedError, match="It has changed since you trained with it"):
        reopen(tmp_path / "run")
    assert not (tmp_path / "ran").exists()
    with pytest.raises(UntrustedError):
        reopen(tmp_path / "run", trust=written(tmp_path, "other.py"))
    reopen(tmp_path / "run", trust=own).close()
    assert (tmp_path / "ran").exists()


def test_without_a_record_file_this_process_still_remembers(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    train(str(written(tmp_path)), corpus(), folder=tmp_path / "run", **ONE_ROUND).close()
    reopen(tmp_path / "run").close()
    new_process(monkeypatch)
    with pytest.raises(UntrustedError):
        reopen(tmp_path / "run")


def test_what_runs_is_what_was_checked(own, monkeypatch, tmp_path):
    """The file is read once: another content, a moment after the check, does not run."""
    allows = trust.allows

    def replaced_meanwhile(*arguments, **options):
        found = allows(*arguments, **options)
        written(tmp_path, mark="swapped")
        return found

    monkeypatch.setattr(trust, "allows", replaced_meanwhile)
    reopen(tmp_path / "run").close()
    assert (tmp_path / "ran").exists() and not (tmp_path / "swapped").exists()


def test_bytecode_beside_a_trusted_file_does_not_run(own, tmp_path):
    planted = Path(cache_from_source(str(own)))
    planted.parent.mkdir(exist_ok=True)
    code = compile(MARKING.format(mark=str(tmp_path / "planted")), str(own), "exec")
    planted.write_bytes(bootstrap._code_to_hash_pyc(code, b"\0" * 8, checked=False))
    reopen(tmp_path / "run").close()
    assert (tmp_path / "ran").exists() and not (tmp_path / "planted").exists()


def test_the_method_that_another_wraps_is_checked_too(stranger, tmp_path):
    path = written(tmp_path)
    train("fedrep", corpus(), folder=tmp_path / "run", of=str(path), inner=SMALL, rounds=1, workers=0).close()
    reopen(tmp_path / "run").close()
    (tmp_path / "ran").unlink()
    stranger()
    with pytest.raises(UntrustedError):
        reopen(tmp_path / "run")
    assert not (tmp_path / "ran").exists()
    reopen(tmp_path / "run", trust=[path]).close()


def test_a_comparison_runs_only_what_its_own_file_names(stranger, tmp_path):
    settings = "\n".join(f"{name} = {value}" for name, value in ONE_ROUND.items())
    (tmp_path / "two.toml").write_text(
        "[data]\nsource = 'dialects'\nsettings = {users = 6, examples = 10}\n"
        f"[settings]\n{settings}\n[configurations.one]\nmethod = 'furl'\n"
    )
    arguments = ["compare", "two.toml", "--folder", "both"]
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    stranger()
    with_settings(tmp_path / "both" / "runs" / "one" / "seed-0", method=str(written(tmp_path)))
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, UntrustedError) and not (tmp_path / "ran").exists()
    # what the experiment file names, the user named with it
    text = (tmp_path / "two.toml").read_text()
    (tmp_path / "two.toml").write_text(text.replace("'furl'", "'own.py'"))
    assert CliRunner().invoke(app, [*arguments[:2], "--folder", "third"], catch_exceptions=False).exit_code == 0


@pytest.mark.system
def test_workers_run_the_bytes_that_this_process_ran(tmp_path):
    path, federation = written(tmp_path), corpus()
    settings = {**ONE_ROUND, "rounds": 2, "cohort": 4}
    with prepare(str(path), federation, folder=tmp_path / "alone", settings=settings) as run:
        list(run.rounds())
        expected = state_to_bytes(run.state)
    with prepare(str(path), federation, folder=tmp_path / "two", settings={**settings, "workers": 1}) as run:
        path.write_text("raise SystemExit('other code')\n")  # after the run was made, before its workers are
        list(run.rounds())
        assert state_to_bytes(run.state) == expected


def test_the_command_refuses_in_one_line(own, stranger, monkeypatch, capsys):
    stranger()
    monkeypatch.setattr(sys, "argv", ["homespun", "evaluate", "run"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown = capsys.readouterr().err
    assert ended.value.code == 2 and shown.startswith("UntrustedError: ") and shown.count("\n") == 1


def votes(monkeypatch, *, asked):
    """A hub with one data set; `asked` records every requested name."""

    def load_dataset(name, subset, *, split):
        asked.append(name)
        return [
            {"user": f"user {user}", "text": f"text {row}", "label": "ab"[row % 2]}
            for user in range(5)
            for row in range(10)
        ]

    monkeypatch.setattr(hub, "available", lambda: True)
    fake = SimpleNamespace(load_dataset=load_dataset, __version__="4.0.0")
    monkeypatch.setitem(sys.modules, "datasets", fake)


def test_a_strangers_folder_fetches_no_data_set(monkeypatch, stranger, tmp_path):
    asked = []
    votes(monkeypatch, asked=asked)
    train("furl", load("org/votes"), folder=tmp_path / "run", **ONE_ROUND).close()
    reopen(tmp_path / "run").close()  # their own
    assert asked == ["org/votes", "org/votes"]
    stranger()
    with pytest.raises(UntrustedError, match=r"'org/votes'.*--trust org/votes"):
        reopen(tmp_path / "run")
    assert len(asked) == 2
    reopen(tmp_path / "run", trust="org/votes").close()
    reopen(tmp_path / "run", federation=load("org/votes")).close()
    assert len(asked) == 4
