"""The part of `settings.json` from which a run is opened again."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from homespun.core.settings import Settings
from homespun.data.source import DataSettings


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
