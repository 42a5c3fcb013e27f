"""Finds and loads methods. There is no registry: a name is a file in `homespun/methods`, or a path to a `.py` file."""

from __future__ import annotations

import importlib
import pkgutil
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from homespun.core.errors import MethodError, UnknownNameError, nearest
from homespun.core.method import Method, MethodFile, Task
from homespun.core.settings import parse
from homespun.system.method_files import gathered, module_from_file


def available_methods() -> tuple[str, ...]:
    package = importlib.import_module("homespun.methods")
    return tuple(sorted(item.name for item in pkgutil.iter_modules(package.__path__) if not item.name.startswith("_")))


def method_module(origin: str) -> ModuleType:
    """The module behind a method's name (`furl`), or behind a file (`./mine.py`)."""
    if origin.endswith(".py"):
        return module_from_file(Path(origin))
    known = available_methods()
    if origin not in known:
        raise UnknownNameError(
            f"no method {origin!r}.{nearest(origin, known)} There are: {', '.join(known)}; or give a .py file."
        )
    return importlib.import_module(f"homespun.methods.{origin}")


def settings_command(origin: str) -> str:
    """The command that lists the settings of a method and of its runs."""
    return f"homespun settings {shlex.quote(origin)}"


def load_method(origin: str, settings: Mapping[str, Any], task: Task, *, files: Sequence[MethodFile] = ()) -> Method:
    """The method of this name or file, with these settings, for this task.

    `files` are those of the same method, loaded before: they run as they ran then.
    """
    where, listed_by = f"method {origin}", settings_command(origin)
    with gathered(files) as used:
        module = method_module(origin)
        lacks = [name for name in ("Settings", "method") if not hasattr(module, name)]
        if lacks:
            raise MethodError(f"{origin}: a method file exports Settings and method; {', '.join(lacks)} missing")
        made: Method = module.method(parse(module.Settings, settings, where=where, listed_by=listed_by), task)
    if origin.endswith(".py"):
        origin = str(Path(origin).resolve())
    return replace(made, origin=origin, files=tuple(used.values()))
