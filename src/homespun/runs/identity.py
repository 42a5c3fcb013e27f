"""What makes a run the run it is, compared leaf by leaf."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from homespun.core.errors import RunError


def require_same_run(folder: Path, *, kept: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """The run in this folder is the one that is asked for, or the difference is shown."""
    here, wanted = _flat(dict(kept)), _flat(dict(asked))
    listed = "".join(
        f"\n  - {name}: {here.get(name, 'nothing')} in the folder, {wanted.get(name, 'nothing')} asked for"
        for name in sorted(here.keys() | wanted.keys())
        if here.get(name) != wanted.get(name)
    )
    if listed:
        remedy = "Ask for the same run to go on with it, or name another folder."
        raise RunError(f"{folder}: this folder holds a different run:{listed}\n{remedy}")


def _flat(value: Any, name: str = "") -> dict[str, str]:
    """A JSON value as the text of each of its leaves by dotted name."""
    if not isinstance(value, dict) or not value:
        return {name: json.dumps(value)}
    inner = [_flat(value[key], f"{name}.{key}" if name else key) for key in value]
    return {leaf: text for leaves in inner for leaf, text in leaves.items()}
