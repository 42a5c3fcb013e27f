"""Versioned JSON files in a run folder, written atomically.

RUN/vault.sqlite    private rows, server state, history (see docs/vault.md)
RUN/settings.json   the settings the run was started with
RUN/results.json    the results, once the run is finished
RUN/report.html, RUN/report.md
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from homespun.core.errors import RunError
from homespun.system.disk import write_whole
from homespun.system.machine import machine

SCHEMA = 1  # of settings.json and results.json


def versions() -> dict[str, str]:
    """Versions of the software and the type of the CPU that a run is trained with."""
    return {"python": platform.python_version(), "homespun": version("homespun"), **machine()}


def write_json(path: Path, content: Mapping[str, Any], *, indent: int | None = 1) -> Path:
    """Write a JSON file atomically, by `disk.write_whole`."""
    return write_whole(path, json.dumps(without_nan(content), indent=indent) + "\n")


def without_nan(value: Any) -> Any:
    """Replace NaN and infinity by None, because JSON has neither."""
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return value


def read_json(path: Path, *, missing: str) -> dict[str, Any]:
    """Read a file written by `write_json`. Raises for any other schema version; `missing` is the error if there is no
    file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(missing) from None
    except (ValueError, RecursionError, OSError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise RunError(f"{path}: not a file of schema {SCHEMA}, the only one this version of homespun reads.")
    return found
