"""Compares the identities of two runs, value by value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from homespun.core.errors import RunError


def require_same_run(folder: Path, *, stored: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise if the run in this folder is not the one asked for, with the differences."""
    here, wanted = _flatten(dict(stored)), _flatten(dict(asked))
    listed = "".join(
        f"\n  - {name}: {here.get(name, 'nothing')} in the folder, {wanted.get(name, 'nothing')} asked for"
        for name in sorted(here.keys() | wanted.keys())
        if here.get(name) != wanted.get(name)
    )
    if listed:
        remedy = "To resume that run, use its settings and data. To start a new run, choose another folder."
        raise RunError(f"{folder}: this folder holds a different run:{listed}\n{remedy}")


def _flatten(value: Any, name: str = "") -> dict[str, str]:
    """The leaves of a JSON value as text, by dotted name."""
    if not isinstance(value, dict) or not value:
        return {name: json.dumps(value)}
    inner = [_flatten(value[key], f"{name}.{key}" if name else key) for key in value]
    return {leaf: text for leaves in inner for leaf, text in leaves.items()}
