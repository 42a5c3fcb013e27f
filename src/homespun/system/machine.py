"""The CPU type and library versions, on which the bits of a run depend besides its settings.

The same seed gives the same bits on the same CPU type with the same versions. Another CPU type has other vector
instructions, which round sums differently.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from homespun.system.terminal import say

# Environment variables that make torch's libraries use other kernels than the fastest for this CPU.
KERNEL_VARIABLES = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


def machine() -> dict[str, str]:
    """The CPU's name, its vector instructions that torch uses, and the versions of torch and numpy."""
    chosen = {name: os.environ[name] for name in KERNEL_VARIABLES if name in os.environ}
    return {
        "cpu": cpu_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": version("torch"),
        "numpy": version("numpy"),
        **chosen,
    }


def cpu_cores() -> int:
    """The CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """The CPU's model name on Linux; the architecture if there is none."""
    return _cpu_field("model name") or platform.machine()


def cpu_vendor() -> str:
    """The CPU's vendor on Linux, as in GenuineIntel or AuthenticAMD; empty if it is unknown."""
    return _cpu_field("vendor_id")


def _cpu_field(name: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def machine_records(history: Sequence[Mapping[str, Any]], *, round: int, folder: Path) -> list[dict[str, Any]]:
    """The history entry for this machine, unless the latest rounds were trained on the same one.

    Warns on stderr about a change, because the run is then not bit-identical to an uninterrupted one.
    """
    here = machine()
    changed = machine_changes(history, here)
    if changed:
        say(
            f"homespun: {folder}: resumes with {', '.join(changed)}. From here on it is not bit-identical to an "
            "uninterrupted run.",
            to=sys.stderr,
        )
    return [] if changed == [] else [{"kind": "machine", "round": round, **here}]


def machine_changes(history: Sequence[Mapping[str, Any]], here: Mapping[str, str]) -> list[str] | None:
    """How this machine differs from the one that trained the latest rounds of a history.

    None if the history does not name a machine.
    """
    known = [entry for entry in history if entry.get("kind") == "machine"]
    if not known:
        return None
    before = known[-1]
    return [
        f"{name} {before.get(name)!r} -> {here.get(name)!r}"
        for name in sorted({*here, *KERNEL_VARIABLES})
        if before.get(name) != here.get(name)
    ]
