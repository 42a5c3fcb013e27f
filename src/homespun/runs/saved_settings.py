"""The part of `settings.json` from which a run is reopened."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from homespun.core.settings import Settings
from homespun.data.source import DataSettings


class SavedSettings(Settings):
    """The fields of `settings.json` that are needed to reopen its run; the others are informational."""

    model_config = ConfigDict(extra="ignore")

    method: str
    """Name or file of the method."""
    method_settings: dict[str, Any]
    """All settings of the method."""
    run: dict[str, Any]
    """All settings of the run."""
    data: DataSettings | None
    """How the federation was loaded. null: it was given in Python."""
    data_fingerprint: str
    """Changes when the data does."""
