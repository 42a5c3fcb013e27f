"""All settings of all methods and corpora are listed: on a narrow terminal, as JSON and in docs/settings.md."""

import importlib.util
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from homespun.cli import app
from homespun.cli.catalogue import corpus_settings, method_settings, text_lines
from homespun.core.errors import SettingsError, UnknownNameError
from homespun.data import builtin_names, load_federation
from homespun.runs.settings import RunSettings
from homespun.runs.training import separate_settings
from homespun.system.method_loading import available_methods

DOCS = Path(__file__).parents[2] / "docs"


def by_name(groups):
    return {one.name: one for settings in groups.values() for one in settings}


def test_a_method_has_its_own_settings_those_of_its_runs_and_of_privacy():
    groups = method_settings("fedperc")
    assert list(groups) == ["method", "run", "privacy"]
    found = by_name(groups)
    assert set(RunSettings.model_fields) - {"privacy"} <= set(found)
    assert (found["local_steps"].default, found["local_steps"].paper) == (10, 10)
    assert (found["prior"].default, found["prior"].paper) == ("learned", "average")
    assert (found["epochs"].default, found["epochs"].paper) == (55, 55)  # of its runs, not of all
    assert found["privacy.delta"].default == 1e-5
    assert by_name(method_settings("furl"))["epochs"].default is None


@pytest.mark.parametrize("method", available_methods())
def test_lists_fit_into_80_columns(method):
    for settings in method_settings(method).values():
        lines = list(text_lines(settings, width=78))
        assert max(map(len, lines)) <= 78 and len(lines) >= 2 * len(settings)


def test_a_method_in_a_file(tmp_path):
    file = tmp_path / "mine.py"
    lines = ["from homespun.methods import furl", "class Settings(furl.Settings):", "    more: int = 3"]
    file.write_text("\n".join([*lines, '    """What it adds."""', ""]))
    assert by_name(method_settings(str(file)))["more"].meaning == "What it adds."


def test_corpora_and_files():
    for name in builtin_names():
        assert by_name(corpus_settings(name))
    assert "min_examples" in by_name(corpus_settings("posts.csv.gz"))
    with pytest.raises(UnknownNameError, match="Did you mean 'dialects'"):
        corpus_settings("dialect")


def test_printed_lists(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    printed = CliRunner().invoke(app, ["settings", "furl"]).output
    assert "  lr = 0.3  [number >= 0]\n      Learning rate of local SGD.\n" in printed
    assert "  user_lr (not set)  [number >= 0]\n" in printed
    assert "  user_dim = 32  [integer > 0; paper: 4 (Sticker), 32 (Subreddit)]\n" in printed
    assert max(map(len, printed.splitlines())) <= 80
    found = json.loads(CliRunner().invoke(app, ["settings", "furl", "--json"]).output)
    assert found["method"] == "furl" and list(found["settings"]) == ["method", "run", "privacy"]
    assert found["settings"]["run"][2] == {
        "name": "cohort", "default": 10, "allowed": "integer > 0 or all", "paper": 10, "required": False,
        "meaning": "Clients in a round; with sampler = poisson, the mean number.",
    }  # fmt: skip
    printed = CliRunner().invoke(app, ["data", "settings", "dialects"]).output
    assert "  noise = 0.1  [number from 0 to 1]\n" in printed


def test_a_typo_names_the_nearest_setting_and_the_command_that_lists_all():
    with pytest.raises(SettingsError) as caught:
        separate_settings("furl", {"lrr": 1})
    assert str(caught.value) == (
        "training furl: unknown setting 'lrr'. Did you mean 'lr'? `homespun settings furl` lists all settings."
    )
    with pytest.raises(SettingsError) as caught:
        load_federation("dialects", settings={"user": 3})
    assert str(caught.value) == (
        "dialects: unknown setting 'user'. Did you mean 'users'? `homespun data settings dialects` lists all settings."
    )


def test_the_page_is_current():
    spec = importlib.util.spec_from_file_location("docs_settings", DOCS / "settings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.page() == (DOCS / "settings.md").read_text(encoding="utf-8"), "run python docs/settings.py"
