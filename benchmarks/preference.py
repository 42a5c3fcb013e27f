"""What W2 and W2-text share: homespun's side, and the two sides alternating in one run."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

import reference_w2 as reference
from gemm import gemm_peak_gflops
from memory import peak_rss_mb

from homespun.engines.cohort import WORKER_ENVIRONMENT, default_workers
from homespun.models.frozen_gpt2 import FrozenGpt2, prefix_losses, prepare

_weights: FrozenGpt2 | None = None  # of this worker process


def start_worker() -> None:
    global _weights
    torch.set_num_threads(1)
    _weights = prepare(reference.make_model())


def train_client(
    context: Tensor, personal: Tensor, *, data: reference.Data, batches: Sequence[np.ndarray]
) -> tuple[Tensor, Tensor]:
    """`reference.train_client` with the model's losses from `prefix_losses`; `data` has one user."""
    assert _weights is not None
    broadcast = context
    context, personal = context.clone().requires_grad_(), personal.clone().requires_grad_()
    optimizer = torch.optim.Adam((context, personal), lr=reference.RATE)
    for batch in batches:
        rows = torch.from_numpy(batch)
        tokens, lengths = data.tokens[0][rows], data.lengths[0][rows]
        prefix = personal * context[data.contexts[0][rows]]
        optimizer.zero_grad(set_to_none=True)
        loss = prefix_losses(_weights, prefix[:, None], tokens=tokens, lengths=lengths).sum() / lengths.sum()
        (loss + reference.PROXIMAL / 2 * (context - broadcast).square().sum()).backward()
        optimizer.step()
    return context.detach(), personal.detach()


class Cohort:
    """homespun's side: clients in worker processes with one thread each."""

    def __init__(self, data: reference.Data, start: reference.Start) -> None:
        self.data, self.state = data, start
        os.environ.update(WORKER_ENVIRONMENT)  # read when a process starts
        self.pool = ProcessPoolExecutor(
            default_workers(), mp_context=multiprocessing.get_context("spawn"), initializer=start_worker
        )

    def round(self, plan: reference.Plan) -> None:
        state = self.state
        tasks = [
            self.pool.submit(train_client, state.context, state.personal[user], data=own, batches=batches)
            for user, batches, own in zip(plan.cohort, plan.batches, self._own(plan.cohort), strict=True)
        ]
        total, personal = torch.zeros_like(state.context), state.personal.clone()
        for user, task in zip(plan.cohort, tasks, strict=True):
            context, personal[user] = task.result()
            total += context - state.context
        self.state = reference.Start(state.context + total / len(plan.cohort), personal)

    def _own(self, cohort: Sequence[int]) -> list[reference.Data]:
        data = self.data
        return [reference.Data([data.tokens[user]], [data.lengths[user]], [data.contexts[user]]) for user in cohort]

    def close(self) -> None:
        self.pool.shutdown()


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def compare(data: reference.Data, start: reference.Start, *, rounds: int, clients: int) -> dict[str, float | int]:
    """Both sides from the same start, with the same cohorts and batches; each takes its own steps."""
    model = reference.make_model()
    ours, theirs = Cohort(data, start), start
    ours.round(reference.make_plan(10**6, data, clients=min(clients, default_workers())))  # workers start and warm up
    ours.state = replace(start)
    seconds: dict[str, list[float]] = {"loop, 1 thread": [], "loop, 2 threads": [], "cohort": []}
    peaks, flops = [], []
    for round_number in range(rounds):
        plan = reference.make_plan(round_number, data, clients=clients)
        after = theirs
        for threads, name in ((1, "loop, 1 thread"), (2, "loop, 2 threads")):
            torch.set_num_threads(threads)
            took, after = timed(lambda: reference.run_round(model, theirs, data=data, plan=plan))  # noqa: B023
            seconds[name].append(took)
        theirs = after
        torch.set_num_threads(1)
        seconds["cohort"].append(timed(lambda: ours.round(plan))[0])  # noqa: B023
        peaks.append(gemm_peak_gflops(default_workers()))
        flops.append(reference.plan_flop(data, plan))
    memory = peak_rss_mb()
    ours.close()
    loop_1, loop_2, cohort_s = (statistics.median(values) for values in seconds.values())
    loop_s, peak = min(loop_1, loop_2), max(peaks)
    gflop = statistics.mean(flops) / 1e9
    return {
        "rounds": rounds,
        "clients": clients,
        "loop_s_per_round": loop_s,
        "loop_threads": 1 if loop_1 <= loop_2 else 2,
        "cohort_s_per_round": cohort_s,
        "ratio": loop_s / cohort_s,
        "loop_clients_per_s": clients / loop_s,
        "cohort_clients_per_s": clients / cohort_s,
        "gemm_peak_gflops": peak,
        "gemm_share": gflop / cohort_s / peak,
        "loop_gemm_share": gflop / loop_s / peak,
        "peak_rss_mb": memory,
        "max_abs_difference": reference.max_abs_difference(theirs, ours.state),
    }
