"""`homespun bench`: runs the workloads in the `benchmarks/` folder of the source tree."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from homespun.core.errors import InputError, SettingsError, UnknownNameError, nearest, raise_faults

FOLDER = Path(__file__).parents[3] / "benchmarks"


def workloads() -> list[str]:
    """The files that define `measure`, with hyphens instead of underscores."""
    files = (path for path in FOLDER.glob("*.py") if "\ndef measure(" in path.read_text(encoding="utf-8"))
    return sorted(path.stem.replace("_", "-") for path in files)


def load_workload(name: str) -> ModuleType:
    if not FOLDER.is_dir():
        raise InputError(
            "the benchmarks are not installed. Clone the source tree and install it with `pip install -e .`."
        )
    known = workloads()
    if name not in known:
        raise UnknownNameError(f"no workload {name!r}.{nearest(name, known)} Known: {', '.join(known)}.")
    stem = name.replace("-", "_")
    spec = importlib.util.spec_from_file_location(f"homespun_benchmark_{stem}", FOLDER / f"{stem}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module during execution
    spec.loader.exec_module(module)
    return module


def run_workload(name: str, *, rounds: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Call `measure` of a workload; `settings` are its other parameters."""
    module = load_workload(name)
    known = [parameter for parameter in inspect.signature(module.measure).parameters if parameter != "rounds"]
    faults = [
        f"unknown setting {one!r}.{nearest(one, known)} Known: {', '.join(known) or 'none'}."
        for one in settings
        if one not in known
    ]
    if faults:
        raise_faults(SettingsError, f"workload {name}", faults)
    return module.measure(rounds=rounds, **settings)


def tables_of(name: str, found: Mapping[str, Any]) -> list[Any]:
    """The tables that a workload makes of its results; most make none."""
    module = load_workload(name)
    return module.tables(found) if hasattr(module, "tables") else []
