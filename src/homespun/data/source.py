"""How a federation is loaded: the settings that name a file, a built-in corpus or a Hugging Face data set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from homespun.core.settings import Settings
from homespun.data import Columns, builtin_names, load_federation
from homespun.data.federation import Federation


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
