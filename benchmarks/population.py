"""One round with a cohort of 50 out of a million users, against one out of a thousand, alternating.

    homespun bench population

A population is a formula and users without an entry cost nothing, so its size should not matter.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from memory import pss_mb

from homespun.data import load_federation
from homespun.runs.open_run import open_run
from homespun.runs.run import Run
from homespun.runs.settings import RunSettings

COHORT = 50


def prepare(folder: str, users: int) -> Run:
    federation = load_federation("dialects", settings={"users": users})
    settings = RunSettings(rounds=10**6, cohort=COHORT)
    return open_run(Path(folder) / str(users), method="furl", federation=federation, settings=settings)


def timed_round(run: Run) -> float:
    begin = time.perf_counter()
    run.step()
    run.commit()
    return time.perf_counter() - begin


def measure(rounds: int = 5) -> dict[str, float | int]:
    with tempfile.TemporaryDirectory() as folder:
        runs = {users: prepare(folder, users) for users in (1_000, 1_000_000)}
        seconds: dict[int, list[float]] = {users: [] for users in runs}
        memory = 0.0
        for run in runs.values():
            timed_round(run)  # starts workers and shuffles both epochs
        for _ in range(rounds):
            for users, run in runs.items():
                seconds[users].append(timed_round(run))
                memory = max(memory, pss_mb())
        for run in runs.values():
            run.close()
    small_s, large_s = (statistics.median(values) for values in seconds.values())
    return {
        "rounds": rounds,
        "thousand_s_per_round": small_s,
        "million_s_per_round": large_s,
        "ratio": large_s / small_s,
        "pss_mb": memory,
    }
