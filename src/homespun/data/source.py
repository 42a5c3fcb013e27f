"""Settings that name the source of a federation: a file, a built-in corpus or a Hugging Face data set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from homespun.core.settings import Settings
from homespun.data import Columns, builtin_names, load_federation
from homespun.data.federation import Federation


class DataSettings(Settings):
    """The source of a federation, its columns and its settings."""

    source: str
    """A file, a built-in corpus, or the name of a Hugging Face data set."""
    columns: dict[Literal["user", "context", "text", "label", "conversation", "profile"], str] = Field(
        default_factory=dict
    )
    """Column names of a file by content: user, context, text, label, conversation, profile."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the corpus; `homespun data settings CORPUS` lists them."""

    @property
    def folder(self) -> Path | None:
        """The folder of a built-in corpus's files, if set."""
        named = self.settings.get("folder")
        return Path(named) if isinstance(named, str) and self.source in builtin_names() else None

    def resolved(self) -> DataSettings:
        """With the absolute path of the file or of the corpus's folder, so that a run can be opened from any working
        directory."""
        path = Path(self.source)
        if self.source in builtin_names():  # as in loading, a built-in name takes precedence over a file
            if self.folder is None or not self.folder.exists():
                return self
            return self.model_copy(update={"settings": {**self.settings, "folder": str(self.folder.resolve())}})
        # not path.exists(), which raises for names that are too long and shows them
        return self.model_copy(update={"source": str(path.resolve())}) if os.path.exists(path) else self

    def load(self) -> Federation:
        return load_federation(self.source, columns=Columns(**self.columns), settings=self.settings)
