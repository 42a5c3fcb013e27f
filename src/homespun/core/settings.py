"""Typed settings: one small class per concern, unknown keys refused with the nearest match.

A setting's meaning is the docstring below its field; `homespun settings` and docs/settings.md show it. Where the
method's paper states a value, the annotation has it too:

    local_steps: Annotated[PositiveInt, Paper(10)] = 10
    '''Gradient steps that a client takes in a round.'''
"""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from homespun.core.errors import SettingsError, nearest, raise_faults

# Settings that had another name before version 0.2. Runs, experiments and scripts made before are read with it.
RENAMED = {
    "base": "base_model",
    "common_rate": "common_lr",
    "embedding_rate": "embedding_lr",
    "head_rate": "head_lr",
    "home_pace": "personalize_lr_factor",
    "home_steps": "personalize_steps",
    "inner": "base_settings",
    "keeps": "private_update",
    "map_rate": "map_lr",
    "model_rate": "model_lr",
    "of": "base_method",
    "over": "row_denominator",
    "own_rate": "own_lr",
    "personal_rate": "personal_lr",
    "personalize_rate": "personalize_lr",
    "proximal": "mu",
    "rate": "lr",
    "sends": "upload_rows",
    "server_rate": "server_lr",
    "statistics_clip": "metrics_clip",
    "triplet_rate": "triplet_lr",
    "user_rate": "user_lr",
}


class RenamedSettingWarning(FutureWarning):
    """A setting was given by the name it had before."""


def current_names(values: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Values by the present names of settings; `known` has them. An earlier name is replaced, with a warning."""
    found = {}
    for name, value in values.items():
        new = RENAMED.get(name, name)
        if name not in known and new in known and new not in values:  # an unknown name, or both, are faults found later
            warnings.warn(f"the setting {name!r} is now called {new!r}", RenamedSettingWarning, stacklevel=2)
            found[new] = value
        else:
            found[name] = value
    return found


def stored_settings(values: Any) -> Any:
    """Settings that were written to disk, by their present names."""
    if not isinstance(values, dict):
        return values
    return {RENAMED.get(name, name): stored_settings(value) for name, value in values.items()}


def current_identity(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What a run on disk was started with, its settings by their present names."""
    groups = ("method_settings", "run")
    return {name: stored_settings(value) if name in groups else value for name, value in identity.items()}


class Settings(BaseModel):
    """Base of every settings class: immutable, and nothing it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    # Fields that are younger than runs on disk. At its default such a field changes nothing, so a run trained before it
    # existed is still the same run.
    added_later: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _current_names(cls, values: Any) -> Any:
        return current_names(values, cls.model_fields) if isinstance(values, Mapping) else values

    def identity(self) -> dict[str, Any]:
        """What makes two runs different runs."""
        found = self.model_dump(mode="json")
        unset = {name for name in self.added_later if getattr(self, name) == type(self).model_fields[name].default}
        return {name: value for name, value in found.items() if name not in unset}


@dataclass(frozen=True)
class Paper:
    """The value that the method's paper states for a setting, or a few words where it states several."""

    value: Any


AnySettings = TypeVar("AnySettings", bound=Settings)


def parse(
    kind: type[AnySettings], values: Mapping[str, Any], *, where: str, listed_by: str | None = None
) -> AnySettings:
    """Settings from plain values; every fault is reported at once, by name.

    `listed_by` is the command that lists all settings with their meanings. Without one, an unknown name gets a list.
    """
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise_faults(SettingsError, where, [_fault(kind, dict(item), listed_by) for item in error.errors()])


def _fault(kind: type[Settings], item: Mapping[str, Any], listed_by: str | None) -> str:
    name = ".".join(str(part) for part in item["loc"]) or "settings"
    if item["type"] == "extra_forbidden":
        *groups, _ = map(str, item["loc"])
        known = sorted(".".join([*groups, one]) for one in group_of(kind, groups).model_fields)
        return unknown_setting(name, known, listed_by=listed_by)
    said = item["msg"].removeprefix("Value error, ")
    got = f" (got {item['input']!r})" if item["loc"] else ""  # of several settings together there is too much
    return f"{name}: {said[0].lower()}{said[1:]}{got}"


def unknown_setting(name: str, known: Sequence[str], *, listed_by: str | None) -> str:
    """What is said of a name that no setting has."""
    rest = f"Known: {', '.join(known)}." if listed_by is None else f"`{listed_by}` lists all settings."
    if RENAMED.get(name) in known:
        return f"{name!r} is given beside its new name: it is now called {RENAMED[name]!r}. Give one of them."
    return f"unknown setting {name!r}.{nearest(name, known)} {rest}"


def group_of(kind: type[BaseModel], groups: Sequence[str]) -> type[BaseModel]:
    """The settings class of a group within settings; the keys of a table between them are the user's own."""
    for group in groups:
        field = kind.model_fields.get(group)
        if field is not None:
            kind = settings_class(field.annotation) or _class_in_table(field.annotation) or kind
    return kind


def settings_class(annotation: Any) -> type[BaseModel] | None:
    """The settings class that a field holds, if it is a group of settings."""
    if get_origin(annotation) in (dict, list, tuple):
        return None
    options = (annotation, *get_args(annotation))
    return next((one for one in options if isinstance(one, type) and issubclass(one, BaseModel)), None)


def _class_in_table(annotation: Any) -> type[BaseModel] | None:
    return settings_class(get_args(annotation)[1]) if get_origin(annotation) is dict else None


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """`["lr=0.1", "privacy.clip=1"]` as values: TOML where it is TOML, text otherwise; a dot goes inside."""
    values: dict[str, Any] = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key.strip():
            raise SettingsError(f"override {override!r} is not of the form name=value, for instance lr=0.1")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        *groups, name = key.strip().split(".")
        inside = values
        for group in groups:
            inside = inside.setdefault(group, {})
            if not isinstance(inside, dict):
                raise SettingsError(f"override {override!r}: {group} was given as a whole before")
        inside[name] = value
    return values
