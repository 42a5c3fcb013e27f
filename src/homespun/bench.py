"""`homespun bench`: the workloads of the source tree's `benchmarks/` folder, by file name."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from homespun.core.errors import InputError, UnknownNameError, nearest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def workloads() -> list[str]:
    """Files that offer `measure`; a workload has hyphens where its file has underscores."""
    files = (path for path in FOLDER.glob("*.py") if "\ndef measure(" in path.read_text(encoding="utf-8"))
    return sorted(path.stem.replace("_", "-") for path in files)


def run_workload(name: str, *, rounds: int) -> dict[str, Any]:
    if not FOLDER.is_dir():
        raise InputError("benchmarks are part of the source tree: clone it and install it with pip install -e .")
    known = workloads()
    if name not in known:
        raise UnknownNameError(f"no workload {name!r}.{nearest(name, known)} There are: {', '.join(known)}.")
    stem = name.replace("-", "_")
    spec = importlib.util.spec_from_file_location(f"homespun_benchmark_{stem}", FOLDER / f"{stem}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.measure(rounds=rounds)
