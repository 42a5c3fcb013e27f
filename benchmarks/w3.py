"""Workload W3: FedEmbed on digits against the frozen reference loop, alternating in one run.

    homespun bench w3

The loop is timed with one thread and with two; the better one counts. Shares are relative to the GEMM peak (all
cores) measured in the same run, in nominal FLOPs.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from digits import compare


def measure(rounds: int = 5) -> dict[str, float | int]:
    return compare(rounds=rounds, clip=None)
