"""The `homespun data` commands, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import homespun
from homespun.cli import app
from homespun.core.errors import DataError, SettingsError


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def test_version() -> None:
    assert run("--version").stdout == f"homespun {homespun.__version__}\n"


def test_data_check_counts_the_texts_that_a_method_truncates(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text("user;text;label\n" + "a;" + "x" * 41 + ";p\n" + "a;short;q\n" * 3)
    assert json.loads(run("data", "check", path, "--json").stdout)["longer_than"]["40"] == 0.25
    found = json.loads(run("data", "check", path, "--method", "furl", "--json").stdout)["cut"]
    assert found == {"share": 0.25, "exact": True, "setting": "length", "length": 40, "unit": "characters"}
    plain = run("data", "check", path, "--method", "furl", "--set", "length=4").stdout
    assert (
        "truncated by furl            100 % of the texts are longer than length = 4 characters and are truncated"
        in plain
    )
    with pytest.raises(SettingsError, match="--set needs --method"):
        run("data", "check", path, "--set", "length=4")


def test_options_of_a_file_are_settings_of_the_data(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_bytes("user^text\njürgen^schön\n".encode("cp1252"))
    with pytest.raises(DataError, match="--data-set encoding=cp1252"):
        run("data", "check", path, "--data-set", "delimiter=^")
    options = ["--data-set", "delimiter=^", "--data-set", "encoding=cp1252", "--data-set", "max_bytes=1_000"]
    assert "jürgen (1 examples)\n  schön" in run("data", "show", path, *options).stdout
    path.write_text("user\ttext\na\tb\n")
    assert "a (1 examples)\n  b" in run("data", "show", path, "--data-set", r"delimiter=\t").stdout
