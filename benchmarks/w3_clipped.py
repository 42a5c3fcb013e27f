"""Workload W3-clipped: W3 where each client's whole update is clipped, on both sides; no noise is added.

homespun bench w3-clipped
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import reference_w3 as reference
from digits import compare


def measure(rounds: int = 5, *, clip: float = reference.CLIP) -> dict[str, float | int]:
    return compare(rounds=rounds, clip=clip)
