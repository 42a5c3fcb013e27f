"""Memory of this process and its children, from Linux's /proc."""

from __future__ import annotations

import os
from pathlib import Path


def process_tree(pid: int | None = None) -> list[int]:
    """This process and all its descendants."""
    found = [pid or os.getpid()]
    for one in found:
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            found += [int(child) for child in children.read_text().split()]
    return found


def _field_kb(path: Path, field: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:  # the process has ended
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(field)), 0)


def peak_rss_mb() -> float:
    """Sum of the processes' peaks: an upper bound, since shared pages count more than once."""
    return sum(_field_kb(Path(f"/proc/{pid}/status"), "VmHWM:") for pid in process_tree()) / 1024


def pss_mb() -> float:
    """Current memory of the processes, with shared pages counted once."""
    return sum(_field_kb(Path(f"/proc/{pid}/smaps_rollup"), "Pss:") for pid in process_tree()) / 1024
