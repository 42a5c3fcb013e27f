"""How many users and examples are evaluated: few by default where it takes long, and as before where records exist."""

import json
from pathlib import Path

import pytest

from homespun.core.settings import parse
from homespun.experiments.experiment import read_experiment
from homespun.runs.settings import RunSettings
from homespun.runs.training import separate_settings

ROOT = Path(__file__).parents[2]
LANGUAGE = ("fedperc", "fedperc_generated", "meta_learning", "split_learning")


def run_settings(method, values):
    return parse(RunSettings, {"rounds": 1, **separate_settings(method, values)[0], "epochs": None}, where="run")


@pytest.mark.parametrize("method", LANGUAGE)
def test_language_runs_evaluate_few_users_and_examples_by_default(method):
    usual = run_settings(method, {"rounds": 2})
    assert (usual.evaluate_users, usual.evaluate_examples) == (25, 25)
    asked = run_settings(method, {"rounds": 2, "evaluate_users": 1000, "evaluate_examples": "all"})
    assert (asked.evaluate_users, asked.evaluate_examples) == (1000, None)


def test_label_runs_evaluate_all_examples_by_default():
    usual = run_settings("furl", {"rounds": 2})
    assert (usual.evaluate_users, usual.evaluate_examples) == (1000, None)


def experiments():
    return [*sorted((ROOT / "experiments").glob("*.toml")), ROOT / "src" / "homespun" / "demo.toml"]


@pytest.mark.parametrize("path", experiments(), ids=lambda path: path.stem)
def test_language_experiments_set_their_evaluation(path):
    experiment = read_experiment(path)
    for configuration in experiment.configurations.values():
        if configuration.method in LANGUAGE:
            assert {"evaluate_users", "evaluate_examples"} <= {*experiment.settings, *configuration.settings}


def comparisons():
    """The records of comparisons; others count words."""
    paths = sorted((ROOT / "docs" / "results").glob("*"))
    return [path for path in paths if "configurations" in json.loads(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("path", comparisons(), ids=lambda path: path.stem)
def test_experiments_evaluate_as_in_their_records(path, monkeypatch):
    monkeypatch.chdir(ROOT)  # method files of experiments are relative to the repository
    monkeypatch.syspath_prepend(ROOT / "docs")
    from record_file import read_record

    experiment, record = read_experiment(ROOT / "experiments" / f"{path.stem}.toml"), read_record(path)
    assert record.runs
    for (key, draw), run in record.runs.items():
        configuration = experiment.configurations[key]
        asked = run_settings(configuration.method, {**experiment.settings, **configuration.settings})
        if not configuration.method.endswith(".py"):  # the name of a method in a file is its own
            assert run["method"] == configuration.method
        assert run["run"]["evaluate_users"] == asked.evaluate_users, f"{key}, {draw}"
        assert run["run"]["evaluate_examples"] == asked.evaluate_examples, f"{key}, {draw}"
