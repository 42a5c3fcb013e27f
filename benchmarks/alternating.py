"""Times the two sides of a workload, alternating in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from gemm import fastest_peak_gflops, gemm_peak_gflops
from memory import peak_rss_mb

from homespun.system.machine import cpu_cores

State = TypeVar("State")


@dataclass
class Alternating:
    """The loop is timed with one thread and with two; the better one counts."""

    loop_s: dict[int, list[float]] = field(default_factory=lambda: {1: [], 2: []})  # by number of threads
    cohort_s: list[float] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)

    def round(self, *, loop: Callable[[], State], cohort: Callable[[], None]) -> State:
        """One round of each side; returns the loop's result."""
        for threads, seconds in self.loop_s.items():
            torch.set_num_threads(threads)
            took, reached = timed(loop)
            seconds.append(took)
        torch.set_num_threads(1)
        self.cohort_s.append(timed(cohort)[0])
        self.peaks.append(gemm_peak_gflops(cpu_cores()))
        return reached

    def figures(self, *, clients: int, flop: float, max_abs_difference: float) -> dict[str, float | int]:
        """Medians over rounds of `flop` nominal operations each; shares are relative to the best peak of the run."""
        by_threads = {threads: statistics.median(seconds) for threads, seconds in self.loop_s.items()}
        threads = min(by_threads, key=lambda number: by_threads[number])
        loop_s, cohort_s, peak = by_threads[threads], statistics.median(self.cohort_s), max(self.peaks)
        return {
            "rounds": len(self.cohort_s),
            "clients": clients,
            "loop_s_per_round": loop_s,
            "loop_threads": threads,
            "cohort_s_per_round": cohort_s,
            "ratio": loop_s / cohort_s,
            "loop_clients_per_s": clients / loop_s,
            "cohort_clients_per_s": clients / cohort_s,
            "gemm_peak_gflops": peak,
            "gemm_share": flop / cohort_s / 1e9 / peak,
            "loop_gemm_share": flop / loop_s / 1e9 / peak,
            "fastest_peak_gflops": (fastest := max(peak, fastest_peak_gflops(cpu_cores()))),
            "share_of_fastest": flop / cohort_s / 1e9 / fastest,
            "peak_rss_mb": peak_rss_mb(),
            "max_abs_difference": max_abs_difference,
        }


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result
