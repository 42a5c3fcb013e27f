"""Workload W2: a frozen GPT-2 with learned prefixes against the frozen reference loop, alternating in one run.

    homespun bench w2

The loop is timed with one thread and with two; the better one counts. Shares are relative to the GEMM peak (all
cores) measured in the same run, in nominal FLOPs.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import reference_w2 as reference
from preference import compare


def measure(rounds: int = 5, *, clients: int = reference.COHORT) -> dict[str, float | int]:
    return compare(reference.make_data(), reference.make_start(), rounds=rounds, clients=clients)
