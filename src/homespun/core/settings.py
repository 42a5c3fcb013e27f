"""Typed settings: one small class per concern, unknown keys refused with the nearest match."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from homespun.core.errors import SettingsError, nearest, raise_faults


class Settings(BaseModel):
    """Base of every settings class: immutable, and nothing it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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
        known = sorted(kind.model_fields)
        return f"unknown setting {name!r}.{nearest(name, known)} Known: {', '.join(known)}."
    said = item["msg"].removeprefix("Value error, ")
    got = f" (got {item['input']!r})" if item["loc"] else ""  # of several settings together there is too much
    return f"{name}: {said[0].lower()}{said[1:]}{got}"


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """`["rate=0.1", "users=none"]` as values: TOML where it is TOML, text otherwise."""
    values: dict[str, Any] = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key.strip():
            raise SettingsError(f"override {override!r} is not of the form name=value, for instance rate=0.1")
        try:
            values[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            values[key.strip()] = text.strip()
    return values
