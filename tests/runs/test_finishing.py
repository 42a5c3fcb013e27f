"""A run is finished when its results and its report are there, all of them of its last round."""

import json

import pytest
from typer.testing import CliRunner

from homespun.cli import app
from homespun.core.errors import DiskError
from homespun.experiments.experiment import Experiment, train_all
from homespun.methods.furl import SMALL
from homespun.report import html

TINY = {**SMALL, "workers": 0}
CORPUS = {"source": "dialects", "settings": {"users": 4, "examples": 10}}


@pytest.fixture(autouse=True)
def small_library(monkeypatch):
    monkeypatch.setattr(html, "get_plotlyjs", lambda: "/* plotly.js */")


def train(folder, *, rounds=1):
    settings = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
    corpus = ["--data", "dialects", "--data-set", "users=4", "--data-set", "examples=10"]
    return CliRunner().invoke(app, ["train", "furl", *corpus, *settings, "--rounds", str(rounds), "-f", str(folder)])


def rounds_in(folder):
    found = json.loads((folder / "results.json").read_text())
    return len(found["configurations"]["furl"]["runs"][0]["rounds"])


def failing(monkeypatch, name):
    """Let one file of the run be on a full disk, once."""
    from homespun.system import disk, json_files

    whole = disk.write_whole

    def write(path, content, **options):
        if path.name == name:
            raise DiskError(f"{path}: the disk is full.")
        return whole(path, content, **options)

    for module in (json_files, html):
        monkeypatch.setattr(module, "write_whole", write)


@pytest.mark.parametrize("name", ["settings.json", "results.json", "report.md", "report.html"])
def test_the_same_command_writes_files_that_a_full_disk_prevented(tmp_path, monkeypatch, name):
    with monkeypatch.context() as patched:
        failing(patched, name)
        assert isinstance(train(tmp_path / "run").exception, DiskError)
    done = train(tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert rounds_in(tmp_path / "run") == 1
    assert (tmp_path / "run" / "report.html").read_text().endswith("</html>\n")
    assert "this run is finished (1 rounds)" in str(train(tmp_path / "run").exception)


@pytest.mark.parametrize("name", ["report.md", "report.html"])
def test_a_missing_file_of_a_finished_run_is_written_again(tmp_path, name):
    assert train(tmp_path / "run").exit_code == 0
    report, results = tmp_path / "run" / name, (tmp_path / "run" / "results.json").read_bytes()
    before = report.read_bytes()
    report.unlink()
    done = train(tmp_path / "run")
    assert done.exit_code == 0 and f"Report: {tmp_path / 'run' / 'report.html'}" in done.output
    assert report.read_bytes() == before and (tmp_path / "run" / "results.json").read_bytes() == results


@pytest.mark.parametrize("name", ["results.json", "report.html"])
def test_results_of_fewer_rounds_are_not_reused_for_a_longer_run(tmp_path, monkeypatch, name):
    assert train(tmp_path / "run").exit_code == 0
    with monkeypatch.context() as patched:
        failing(patched, name)
        assert isinstance(train(tmp_path / "run", rounds=2).exception, DiskError)
    done = train(tmp_path / "run", rounds=2)
    assert done.exit_code == 0, done.output
    assert rounds_in(tmp_path / "run") == 2
    assert "| run.rounds | 2 |" in (tmp_path / "run" / "report.md").read_text()


def test_a_comparison_does_not_reuse_results_of_fewer_rounds(tmp_path, monkeypatch):
    def compare(rounds):
        experiment = Experiment(
            name="e", data=CORPUS, settings={**TINY, "rounds": rounds}, configurations={"furl": {"method": "furl"}}
        )

        class Silent:
            def __enter__(self):
                return lambda event: None

            def __exit__(self, *_):
                return None

        train_all(experiment, tmp_path, lambda run, title: Silent())

    compare(1)
    with monkeypatch.context() as patched:
        failing(patched, "results.json")
        with pytest.raises(DiskError):
            compare(2)
    compare(2)
    assert rounds_in(tmp_path / "runs" / "furl" / "seed-0") == 2
