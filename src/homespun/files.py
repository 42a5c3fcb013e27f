"""What lies in a run folder beside the vault: JSON files, versioned, written whole or not at all.

RUN/vault.sqlite    private rows, server state, history (see docs/vault.md)
RUN/settings.json   everything the run was started with
RUN/results.json    the numbers, once it is finished
RUN/report.html, RUN/report.md
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict, Field

from homespun.core.errors import RunError
from homespun.core.settings import Settings
from homespun.data import Columns, builtin_names, load_federation
from homespun.data.federation import Federation
from homespun.disk import write_whole
from homespun.machine import machine

SCHEMA = 1  # of settings.json and results.json


class DataSettings(Settings):
    """How a federation is loaded."""

    source: str
    """A file, a built-in corpus, or the name of a Hugging Face data set."""
    columns: dict[Literal["user", "context", "text", "label"], str] = Field(default_factory=dict)
    """Columns of a file by what they hold: user, context, text, label."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the corpus; `homespun data settings CORPUS` lists them."""

    @property
    def folder(self) -> Path | None:
        """Where a built-in corpus has its files, if somebody said so."""
        named = self.settings.get("folder")
        return Path(named) if isinstance(named, str) and self.source in builtin_names() else None

    def resolved(self) -> DataSettings:
        """With the whole path of a file, or of a built-in corpus's folder, so that a run can be opened from another
        folder."""
        path = Path(self.source)
        if self.source in builtin_names():  # as loading has it, whatever else is called that
            if self.folder is None or not self.folder.exists():
                return self
            return self.model_copy(update={"settings": {**self.settings, "folder": str(self.folder.resolve())}})
        # not path.exists(), which raises for what is too long to be a path, and prints it
        return self.model_copy(update={"source": str(path.resolve())}) if os.path.exists(path) else self

    def load(self) -> Federation:
        return load_federation(self.source, columns=Columns(**self.columns), settings=self.settings)


class SavedSettings(Settings):
    """What `settings.json` has to say for its run to be opened again; the rest of it is for people."""

    model_config = ConfigDict(extra="ignore")

    method: str
    """The method's name, or its file."""
    method_settings: dict[str, Any]
    """All settings of the method."""
    run: dict[str, Any]
    """All settings of the run."""
    data: DataSettings | None
    """How the federation was loaded; none if it was made in Python."""
    data_fingerprint: str
    """Changes when the data does."""


def versions() -> dict[str, str]:
    """What a run was trained with: versions, and the type of the CPU."""
    return {"python": platform.python_version(), "homespun": version("homespun"), **machine()}


def write_json(path: Path, content: Mapping[str, Any], *, indent: int | None = 1) -> Path:
    """Write a JSON file as `disk.write_whole` does: a reader never sees half of it."""
    return write_whole(path, json.dumps(without_nan(content), indent=indent) + "\n")


def without_nan(value: Any) -> Any:
    """JSON has no NaN: what is not a number becomes null."""
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return value


def read_json(path: Path, *, missing: str) -> dict[str, Any]:
    """A file that `write_json` wrote, of the schema this version knows."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(missing) from None
    except (ValueError, RecursionError, OSError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise RunError(f"{path}: not a file of schema {SCHEMA}, which is what this homespun reads.")
    return found
