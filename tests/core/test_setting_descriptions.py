"""Descriptions of settings: name, default, allowed values, meaning, the paper's value."""

import importlib
import pkgutil
from typing import Annotated, Literal

import pytest
from pydantic import Field, NonNegativeFloat, PositiveInt

import homespun
from homespun.core.errors import SettingsError
from homespun.core.setting_descriptions import SettingDescription, describe_settings, format_value
from homespun.core.settings import Paper, Settings, parse


def every_settings_class():
    for module in pkgutil.walk_packages(homespun.__path__, "homespun."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found, waiting = set(), [Settings]
    while waiting:
        kinds = [kind for kind in waiting.pop().__subclasses__() if kind.__module__.startswith("homespun.")]
        found |= set(kinds)
        waiting += kinds
    return found


def test_every_setting_has_a_meaning():
    kinds = every_settings_class()
    assert len(kinds) > 25
    undocumented = {
        f"{kind.__module__}.{kind.__name__}.{name}"
        for kind in kinds
        for name, field in kind.model_fields.items()
        if not field.description or not field.description.endswith(".")
    }
    assert undocumented == set()


class Inner(Settings):
    clip: Annotated[PositiveInt | dict[str, PositiveInt], Paper(2)] = 1
    """Longest update."""


class Outer(Settings):
    rate: Annotated[NonNegativeFloat | None, Paper("0.1 (here), 0.2 (there)")] = None
    """Rate of learning.
    Not set: the server's."""

    kind: Literal["a", "b"] = "a"
    """Which one."""
    share: float = Field(default=0.5, ge=0, lt=1)
    """A share."""
    classes: int = Field(default=8, ge=2, le=256)
    """Classes."""
    only: Literal["a"] = "a"
    """One value."""
    flag: bool = True
    """Whether."""
    names: tuple[str, ...] = ()
    """Some names."""
    parts: tuple[int, PositiveInt] = (0, 1)
    """Two parts."""
    path: str
    """A file."""
    inner: Inner | None = None
    """More."""


def test_descriptions_of_settings():
    found = describe_settings(Outer, defaults={"share": 0.25}, paper={"flag": False})
    assert found == (
        SettingDescription(
            "rate", None, "number >= 0", "Rate of learning. Not set: the server's.", "0.1 (here), 0.2 (there)"
        ),
        SettingDescription("kind", "a", "a or b", "Which one."),
        SettingDescription("share", 0.25, "number >= 0 and < 1", "A share."),
        SettingDescription("classes", 8, "integer from 2 to 256", "Classes."),
        SettingDescription("only", "a", "a", "One value."),
        SettingDescription("flag", True, "true or false", "Whether.", paper=False),
        SettingDescription("names", (), "list of text", "Some names."),
        SettingDescription("parts", (0, 1), "list of integer, integer > 0", "Two parts."),
        SettingDescription("path", None, "text", "A file.", required=True),
        SettingDescription("inner.clip", 1, "integer > 0 or table of integer > 0", "Longest update.", paper=2),
    )


def test_values_are_formatted_as_overrides():
    assert [format_value(value) for value in (0.001, 1e-5, True, "a b", "", "\n", (0.6, 0.4), (), {})] == [
        "0.001", "1e-05", "true", "a b", '""', '"\\n"', "[0.6, 0.4]", "[]", "{}",
    ]  # fmt: skip


def test_an_unknown_setting_names_the_nearest_and_the_command_that_lists_all():
    with pytest.raises(SettingsError) as caught:
        parse(Outer, {"raet": 1, "path": "x"}, where="run", listed_by="homespun settings some")
    assert str(caught.value) == (
        "run: unknown setting 'raet'. Did you mean 'rate'? `homespun settings some` lists all settings."
    )
    with pytest.raises(SettingsError, match=r"unknown setting 'inner.clp'. Did you mean 'inner.clip'\?"):
        parse(Outer, {"path": "x", "inner": {"clp": 1}}, where="run", listed_by="homespun settings some")


class Several(Settings):
    tables: dict[str, Inner]
    """Groups under names that the user chooses."""


def test_a_misspelt_setting_in_a_table_of_groups():
    with pytest.raises(SettingsError, match=r"unknown setting 'tables.mine.clp'. Did you mean 'tables.mine.clip'\?"):
        parse(Several, {"tables": {"mine": {"clp": 1}}}, where="file")
    (found,) = describe_settings(Several)
    assert found.name == "tables" and found.allowed == "table of tables"
