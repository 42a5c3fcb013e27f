"""Corpora as federations: built in, from a file, from data in memory, or from the Hugging Face hub.

    federation = load_federation("dialects", settings={"users": 200})
    federation = load_federation("posts.jsonl.gz", columns=Columns(label="context"))
    federation = load_federation([{"user": "anna", "text": "good night"}, ...])

A built-in corpus is a module of this package with a function `load(settings)`. The module's name is the corpus's name.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from homespun.core.errors import SettingsError, UnknownNameError, nearest
from homespun.core.settings import Settings, parse
from homespun.data import hub, readers
from homespun.data.columns import Columns
from homespun.data.federation import Examples, Federation
from homespun.data.folders import read_folder
from homespun.data.memory import read_rows
from homespun.data.table import Filters

__all__ = ["Columns", "Examples", "Federation", "builtin_names", "load_federation", "on_hub"]

DEFAULT_COLUMNS = Columns()
LONGEST_FILE_NAME, LONGEST_PATH = 255, 4096  # in bytes


def builtin_names() -> list[str]:
    """Names of the built-in corpora: the modules of this package that have a `load` function."""
    modules = [module.name for module in pkgutil.iter_modules(__path__)]
    return sorted(name for name in modules if hasattr(importlib.import_module(f"{__name__}.{name}"), "load"))


def on_hub(source: str) -> bool:
    """Whether a name is neither a built-in corpus nor a file, so that it can only be on the Hugging Face hub."""
    return source not in builtin_names() and readers.format_of(Path(source)) is None and not os.path.exists(source)


def settings_command(source: str) -> str:
    """The command that lists the settings of a corpus."""
    return f"homespun data settings {shlex.quote(source)}"


def settings_of(source: str) -> type[Settings]:
    """The settings class of a built-in corpus, a file or a Hugging Face data set."""
    if source in (builtins := builtin_names()):
        return importlib.import_module(f"{__name__}.{source}").Settings
    if not on_hub(source):
        return readers.FileSettings
    if hub.available():
        return hub.Settings
    raise UnknownNameError(
        f"no built-in corpus or file {source!r}.{nearest(source, builtins)} Built in: {', '.join(builtins)}. "
        f"Files end in {readers.FORMATS}."
    )


def load_federation(
    source: Any, *, columns: Columns = DEFAULT_COLUMNS, settings: Mapping[str, Any] | None = None
) -> Federation:
    """Load a federation.

    `source` is the name of a built-in corpus, a file or a Hugging Face data set, or the data itself: a list of dicts,
    a pandas frame, a pyarrow table, a Hugging Face data set.
    """
    if not isinstance(source, str | os.PathLike):
        filters = parse(Filters, settings or {}, where=type(source).__name__)
        return read_rows(source, columns=columns, filters=filters)
    name, path, values = _name_of(source), Path(source), settings or {}
    if name in (builtins := builtin_names()):
        if columns != DEFAULT_COLUMNS:
            raise SettingsError(
                f"{name}: a built-in corpus has its own columns. Leave the column options out"
                + (" and set label instead, for example label=context." if name == "sotu" else ".")
            )
        return importlib.import_module(f"{__name__}.{name}").load(values)
    if not on_hub(name):
        file_settings = parse(readers.FileSettings, values, where=name, listed_by=settings_command(name))
        read = read_folder if os.path.isdir(path) else readers.read_file
        return read(path, columns=columns, settings=file_settings)
    known = f"{nearest(name, builtins)} Built in: {', '.join(builtins)}. Files end in {readers.FORMATS}."
    if not hub.available():
        raise UnknownNameError(
            f"no built-in corpus or file {name!r}.{known} Hugging Face data sets by name need: {hub.EXTRA}"
        )
    parsed = parse(hub.Settings, values, where=name, listed_by=settings_command(name))
    return hub.read_hub(name, columns=columns, settings=parsed, otherwise=known)


def _name_of(source: str | os.PathLike[str]) -> str:
    """The name of a corpus or file. A string that cannot be a name may be the data itself, so errors do not show it."""
    name = str(source)
    parts = [part.encode("utf-8", "surrogatepass") for part in name.split(os.sep)]
    too_long = max(map(len, parts)) > LONGEST_FILE_NAME or len(name) > LONGEST_PATH
    if too_long or any(sign in name for sign in "\n\r\0"):
        raise UnknownNameError(
            f"no built-in corpus or file: this is a text of {len(name):,} characters, not a name. Write the data to a "
            "file and pass its name, or pass rows: a list of dicts, a data frame."
        )
    return name
