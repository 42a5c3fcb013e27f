"""A run is opened again by its folder alone, or says what is in the way."""

import json

import pytest
from typer.testing import CliRunner

from homespun import evaluate, load, reopen, train
from homespun.cli import app
from homespun.core.errors import RunError
from homespun.data import load_federation
from homespun.data.readers import Columns
from homespun.methods.furl import SMALL

ONE_ROUND = {"rounds": 1, "workers": 0, **SMALL}


def written(path, *, more=""):
    rows = [f"{user},good day number {day},{'abc'[day % 3]}" for user in ("ann", "bob", "cem") for day in range(10)]
    path.write_text("\n".join(["who,text,label", *rows, *([more] if more else [])]) + "\n", encoding="utf-8")
    return path


def trained(folder, corpus):
    with train("furl", load(corpus, columns=Columns(user="who")), folder=folder, **ONE_ROUND) as run:
        return evaluate(run).loss


def test_a_run_from_python_is_reopened_by_its_folder_and_has_a_report(tmp_path):
    loss = trained(tmp_path / "run", written(tmp_path / "posts.csv"))
    with reopen(tmp_path / "run") as run:
        assert evaluate(run).loss == loss
    done = CliRunner().invoke(app, ["report", str(tmp_path / "run")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "run" / "report.html").exists() and (tmp_path / "run" / "results.json").exists()


def test_a_federation_made_in_python_must_be_given_again(tmp_path):
    made = load_federation("dialects", settings={"users": 5, "examples": 10})
    with train("furl", made, folder=tmp_path / "run", **ONE_ROUND) as run:
        loss = evaluate(run).loss
    with pytest.raises(RunError, match=r"given in Python, not as a file. Pass them again: reopen\(folder, federation="):
        reopen(tmp_path / "run")
    with reopen(tmp_path / "run", federation=made) as run:
        assert evaluate(run).loss == loss
    other = load_federation("dialects", settings={"users": 6, "examples": 10})
    with pytest.raises(RunError, match="dialects has changed since the run was trained on it"):
        reopen(tmp_path / "run", federation=other)


def test_a_moved_or_changed_corpus_is_reported(tmp_path):
    corpus, folder = written(tmp_path / "posts.csv"), tmp_path / "run"
    loss = trained(folder, corpus)
    written(corpus, more="ann,one more,a")
    with pytest.raises(RunError, match=r"posts.csv has changed since the run was trained on it"):
        reopen(folder)
    corpus.unlink()
    (tmp_path / "elsewhere").mkdir()
    moved = written(tmp_path / "elsewhere" / "posts.csv")
    with pytest.raises(
        RunError, match=r"no such file. The run in .* If it was moved, enter its new path in the settings.json"
    ):
        reopen(folder)
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    settings["data"]["source"] = str(moved)
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    with reopen(folder) as run:
        assert evaluate(run).loss == loss


def test_the_error_for_a_comparison_folder_lists_its_runs(tmp_path):
    inner = tmp_path / "runs" / "furl" / "seed-0"
    trained(inner, written(tmp_path / "posts.csv"))
    with pytest.raises(RunError, match=r"no run here .* It is a comparison; its runs are .*furl/seed-0\."):
        reopen(tmp_path)
