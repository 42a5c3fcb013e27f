"""Failures that fuzzing found: each raised an exception other than a HomespunError."""

import json

import pytest
from targets import CORPUS, DATA, SIZES

from homespun.core.errors import DataError, RunError, SettingsError
from homespun.experiments.results import RESULTS_FILE
from homespun.privacy.ledger import Ledger, LedgerError
from homespun.report.html import rewrite_report
from homespun.runs.training import SETTINGS_FILE, reopen, train
from homespun.system.json_files import read_json


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("found") / "run"
    with train("furl", DATA.load(), folder=folder, rounds=1, cohort=3, workers=0, **SIZES):
        pass
    saved = json.loads((folder / SETTINGS_FILE).read_text())
    return folder, {**saved, "data": DATA.model_dump(mode="json")}


SETTINGS = {
    "settings of the method that are a number": ({"method_settings": 1}, SettingsError),
    "settings of the method that are a list": ({"method_settings": ["x"]}, SettingsError),
    "settings of the run that are null": ({"run": None}, SettingsError),
    "a method that is a number": ({"method": 5}, SettingsError),
    "a fingerprint that is a list": ({"data_fingerprint": []}, SettingsError),
    "a layer that does not fit in memory": ({"method_settings": {**SIZES, "lstm_dim": 2**58}}, RunError),
    "users that do not fit in memory": ({"data": {"source": "dialects", "settings": {"users": 2**32}}}, DataError),
    "a corpus whose name is too long": ({"data": {"source": "x" * 300 + ".csv"}}, RunError),
}


@pytest.mark.parametrize(("changed", "error"), SETTINGS.values(), ids=SETTINGS)
def test_settings(run, changed, error):
    folder, saved = run
    (folder / SETTINGS_FILE).write_text(json.dumps({**saved, **changed}))
    with pytest.raises(error):
        reopen(folder)
    (folder / SETTINGS_FILE).write_text(json.dumps(saved))
    reopen(folder).close()


@pytest.mark.parametrize("text", ["[" * 100_000, '{"schema": ' + "9" * 5000 + "}", "\ud800", "", "null"])
def test_a_file_that_is_not_json_or_too_deep(tmp_path, text):
    (tmp_path / "settings.json").write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(RunError):
        read_json(tmp_path / "settings.json", missing="gone")


@pytest.mark.parametrize("name", ["configurations", "controls", "data"])
@pytest.mark.parametrize("value", [None, [], 7, {"x": 1}])
def test_results_with_invalid_sections(tmp_path, name, value):
    (tmp_path / RESULTS_FILE).write_text(json.dumps({**json.loads(CORPUS[0]), name: value}))
    try:
        rewrite_report(tmp_path)  # some sections are optional
    except RunError as error:
        assert RESULTS_FILE in str(error)


def test_results_without_the_runs_they_summarize(tmp_path):
    found = json.loads(CORPUS[0])
    found["configurations"]["global"]["runs"] = "none"
    (tmp_path / RESULTS_FILE).write_text(json.dumps(found))
    with pytest.raises(RunError, match=r"cannot make a report from it \(\w+Error"):
        rewrite_report(tmp_path)


def test_a_noise_multiplier_of_400_digits_in_a_ledger(tmp_path):
    lines = [{"data": "dialects"}, {"release": {"rate": 0.5, "noise_multiplier": 10**400}, "run": "one"}]
    (tmp_path / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(LedgerError, match="line 2 cannot be read"):
        Ledger(tmp_path / "ledger.jsonl", "dialects").spent()
