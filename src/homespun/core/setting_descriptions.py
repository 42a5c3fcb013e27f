"""Descriptions of settings (default, allowed values, meaning), generated from the classes that validate them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from homespun.core.settings import Paper, settings_class

TYPES = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false"}


@dataclass(frozen=True)
class SettingDescription:
    """The description of one setting."""

    name: str  # with its group: "privacy.clip"
    default: Any  # None: not set by default
    allowed: str
    meaning: str
    paper: Any = None  # the value in the paper; None: not stated
    required: bool = False


def describe_settings(
    kind: type[BaseModel],
    *,
    defaults: Mapping[str, Any] | None = None,
    paper: Mapping[str, Any] | None = None,
    group: str = "",
) -> tuple[SettingDescription, ...]:
    """Describe every setting of a class, nested groups included, in the order of the class.

    `defaults` and `paper` override the values in the class, by name.
    """
    properties = kind.model_json_schema()["properties"]
    found: list[SettingDescription] = []
    for name, field in kind.model_fields.items():
        nested = settings_class(field.annotation)
        if nested is not None:
            found += describe_settings(nested, group=f"{group}{name}.")
            continue
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        found.append(
            SettingDescription(
                name=group + name,
                default=(defaults or {}).get(name, default),
                allowed=_allowed(properties[field.alias or name]),
                meaning=" ".join((field.description or "").split()),
                paper=(paper or {}).get(name, _paper_value(field)),
                required=field.is_required() and name not in (defaults or {}),
            )
        )
    return tuple(found)


def _paper_value(field: FieldInfo) -> Any:
    return next((one.value for one in field.metadata if isinstance(one, Paper)), None)


def format_value(value: Any) -> str:
    """Format a value as it is typed after `--set name=`."""
    if isinstance(value, str):
        return value if value and value.isprintable() and value == value.strip() else json.dumps(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_value, value))}]"
    return repr(value) if isinstance(value, float) else json.dumps(value)


def _allowed(schema: Mapping[str, Any]) -> str:
    """Describe the values that a JSON schema allows. `null` is omitted: it means that the setting is not set."""
    if "anyOf" in schema:
        return " or ".join(_allowed(option) for option in schema["anyOf"] if option.get("type") != "null")
    if "enum" in schema:
        *others, last = map(str, schema["enum"])
        return f"{', '.join(others)} or {last}"
    if "const" in schema:
        return str(schema["const"])
    if "prefixItems" in schema:
        return f"list of {', '.join(map(_allowed, schema['prefixItems']))}"
    if schema.get("type") == "array":
        return f"list of {_allowed(schema['items'])}"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return f"table of {_allowed(values)}" if isinstance(values, Mapping) else "table"
    if "$ref" in schema:
        return "tables"
    return TYPES[schema["type"]] + _bounds(schema) if "type" in schema else "any value"


def _bounds(schema: Mapping[str, Any]) -> str:
    if {"minimum", "maximum"} <= schema.keys():
        return f" from {schema['minimum']} to {schema['maximum']}"
    signs = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
    bounds = [f"{sign} {schema[name]:g}" for name, sign in signs.items() if name in schema]
    return f" {' and '.join(bounds)}" if bounds else ""
