"""Settings as a person reads them, from the classes that check them: default, allowed values, meaning."""

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
class Setting:
    """What is said of one setting."""

    name: str  # with its group: "privacy.clip"
    default: Any  # None: it is not set
    allowed: str
    meaning: str
    paper: Any = None  # None: the paper does not say
    required: bool = False


def described(
    kind: type[BaseModel],
    *,
    defaults: Mapping[str, Any] | None = None,
    paper: Mapping[str, Any] | None = None,
    group: str = "",
) -> tuple[Setting, ...]:
    """Every setting of a class, those of its groups included, in the order of the class.

    `defaults` and `paper` go before what the class itself says, by name.
    """
    properties = kind.model_json_schema()["properties"]
    found: list[Setting] = []
    for name, field in kind.model_fields.items():
        inside = settings_class(field.annotation)
        if inside is not None:
            found += described(inside, group=f"{group}{name}.")
            continue
        usual = None if field.is_required() else field.get_default(call_default_factory=True)
        found.append(
            Setting(
                name=group + name,
                default=(defaults or {}).get(name, usual),
                allowed=_allowed(properties[field.alias or name]),
                meaning=" ".join((field.description or "").split()),
                paper=(paper or {}).get(name, _stated(field)),
                required=field.is_required() and name not in (defaults or {}),
            )
        )
    return tuple(found)


def _stated(field: FieldInfo) -> Any:
    return next((one.value for one in field.metadata if isinstance(one, Paper)), None)


def as_typed(value: Any) -> str:
    """A value as one types it after `--set name=`."""
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_typed, value))}]"
    return repr(value) if isinstance(value, float) else json.dumps(value)


def _allowed(schema: Mapping[str, Any]) -> str:
    """The values that a JSON schema allows, in words. `null` is what is not set, which nobody types."""
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
