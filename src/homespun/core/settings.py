"""Typed settings: one small class per concern, unknown keys refused with the nearest match."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from homespun.core.errors import SettingsError, nearest, raise_faults


class Settings(BaseModel):
    """Base of every settings class: immutable, and nothing it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Fields that are younger than runs on disk. At its default such a field changes nothing, so a run trained before it
    # existed is still the same run.
    added_later: ClassVar[tuple[str, ...]] = ()

    def identity(self) -> dict[str, Any]:
        """What makes two runs different runs."""
        found = self.model_dump(mode="json")
        unset = {name for name in self.added_later if getattr(self, name) == type(self).model_fields[name].default}
        return {name: value for name, value in found.items() if name not in unset}


AnySettings = TypeVar("AnySettings", bound=Settings)


def parse(kind: type[AnySettings], values: Mapping[str, Any], *, where: str) -> AnySettings:
    """Settings from plain values; every fault is reported at once, by name."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise_faults(SettingsError, where, [_fault(kind, dict(item)) for item in error.errors()])


def _fault(kind: type[Settings], item: Mapping[str, Any]) -> str:
    name = ".".join(str(part) for part in item["loc"]) or "settings"
    if item["type"] == "extra_forbidden":
        *groups, last = map(str, item["loc"])
        known = sorted(_inside(kind, groups).model_fields)
        return f"unknown setting {name!r}.{nearest(last, known)} Known: {', '.join(known)}."
    said = item["msg"].removeprefix("Value error, ")
    got = f" (got {item['input']!r})" if item["loc"] else ""  # of several settings together there is too much
    return f"{name}: {said[0].lower()}{said[1:]}{got}"


def _inside(kind: type[BaseModel], groups: Sequence[str]) -> type[BaseModel]:
    """The settings class of a group within settings."""
    for group in groups:
        annotation = kind.model_fields[group].annotation
        for option in (annotation, *get_args(annotation)):
            if isinstance(option, type) and issubclass(option, BaseModel):
                kind = option
    return kind


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """`["rate=0.1", "privacy.clip=1"]` as values: TOML where it is TOML, text otherwise; a dot goes inside."""
    values: dict[str, Any] = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key.strip():
            raise SettingsError(f"override {override!r} is not of the form name=value, for instance rate=0.1")
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
