"""Settings that had another name before 0.2 are still read, with a warning; runs on disk are still the same runs."""

import json
import sqlite3
import warnings

import pytest

from homespun import load, reopen, train
from homespun.core.errors import SettingsError
from homespun.core.settings import RENAMED, RenamedSettingWarning, Settings, current_identity, parse
from homespun.methods.furl import SMALL
from homespun.runs.vault import VAULT_FILE
from homespun.runs.vault_file import digest
from homespun.system.method_loading import available_methods, method_module

RUN = {**SMALL, "cohort": 3, "workers": 0, "evaluate_every": 9}


class Mine(Settings):
    lr: float = 0.1
    base_settings: dict[str, float] = {}  # noqa: RUF012


def test_an_earlier_name_is_read_and_reported():
    with pytest.warns(RenamedSettingWarning, match="'rate' is now called 'lr'"):
        assert parse(Mine, {"rate": 0.5}, where="mine").lr == 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parse(Mine, {"lr": 0.5}, where="mine").lr == 0.5


def test_both_names_at_once_are_rejected():
    with pytest.raises(SettingsError, match=r"'rate'.* is now called 'lr'"):
        parse(Mine, {"rate": 0.5, "lr": 0.1}, where="mine")


def test_no_method_has_a_setting_by_an_earlier_name():
    known = {name for method in available_methods() for name in method_module(method).Settings.model_fields}
    assert known & RENAMED.keys() == set()
    assert RENAMED.keys() & set(RENAMED.values()) == set()


def test_settings_within_settings_are_renamed_in_an_identity():
    before = {"method": "fedrep", "method_settings": {"of": "furl", "inner": {"rate": 1, "mu": 2}}, "run": {"seed": 3}}
    assert current_identity(before) == {
        "method": "fedrep",
        "method_settings": {"base_method": "furl", "base_settings": {"lr": 1, "mu": 2}},
        "run": {"seed": 3},
    }


def as_before(folder):
    """Give the settings in a run's folder the names that they had."""
    earlier = {new: old for old, new in RENAMED.items()}
    with sqlite3.connect(folder / VAULT_FILE) as vault:
        (text,) = vault.execute("SELECT value FROM run WHERE key = 'identity'").fetchone()
        identity = json.loads(text)
        identity["method_settings"] = {earlier.get(name, name): v for name, v in identity["method_settings"].items()}
        value = json.dumps(identity).encode()
        checked = (value, digest("identity", value))
        vault.execute("UPDATE run SET value = ?, sha256 = ? WHERE key = 'identity'", checked)
    saved = json.loads((folder / "settings.json").read_text())
    saved["method_settings"] = {earlier.get(name, name): value for name, value in saved["method_settings"].items()}
    (folder / "settings.json").write_text(json.dumps(saved))
    assert {"rate", "proximal", "keeps"} <= saved["method_settings"].keys()


def test_a_run_made_before_resumes_and_is_reopened(tmp_path):
    federation = load("dialects", users=12)
    train("furl", federation, folder=tmp_path / "run", rounds=1, **RUN).close()
    as_before(tmp_path / "run")
    with pytest.warns(RenamedSettingWarning), reopen(tmp_path / "run") as run:
        assert (run.state.round, run.method.settings.lr) == (1, 0.3)
    with (
        train("furl", federation, folder=tmp_path / "run", rounds=3, **RUN) as resumed,
        train("furl", federation, folder=tmp_path / "whole", rounds=3, **RUN) as whole,
    ):
        for name, value in whole.state.federated.items():
            assert value.equal(resumed.state.federated[name])
