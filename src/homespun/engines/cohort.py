"""The default engine: a cohort's clients in fixed chunks, shared among a few persistent processes.

The chunks depend on the cohort alone and their sums are added in order, so that the numbers do not
depend on how many workers there are or which of them was faster.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import ceil
from typing import Any

from torch import Tensor

from homespun.core.devices import CPU
from homespun.core.messages import Broadcast, pack
from homespun.core.method import BuiltMethod, Stackable
from homespun.core.progress import Done, each, silent
from homespun.core.threads import one_thread
from homespun.core.transforms import NO_TRANSFORMS, Transforms
from homespun.engines.client import Client, Mode, Outcome, empty_update, require_own_roles, sort_by_user
from homespun.engines.exchange import clients_to_tensors, outcome_from_reply, outputs_from_reply, transforms_to_list
from homespun.engines.placement import place_method
from homespun.engines.pool import Reply, broadcast_message, setup_message, shared_pool
from homespun.engines.single_step import train_chunk
from homespun.engines.stacked import merge_outcomes, predict_clients

# Clients per chunk, at most: large enough to fill a stacked matrix product, small enough that its activations
# stay in the cache (measured; see docs/decisions/0002-stacked-lstm.md).
CHUNK = 25


def default_workers() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class CohortTrainer:
    """`workers=0` does the same work in this process."""

    built: BuiltMethod
    seed: int
    workers: int = field(default_factory=default_workers)
    transforms: Transforms = NO_TRANSFORMS
    device: str = CPU  # another one than the CPU is this process's own, and no worker is asked

    @cached_property
    def placed(self) -> BuiltMethod:
        return place_method(self.built, self.device)

    @property
    def _in_process(self) -> bool:
        return self.workers == 0 or self.device != CPU

    @one_thread()
    def train(
        self, broadcast: Broadcast, clients: Sequence[Client], *, mode: Mode = "round", done: Done = silent
    ) -> Outcome:
        require_own_roles(broadcast, self.built)
        chunks = split_chunks(sort_by_size(sort_by_user(clients)), self._chunk)
        if self._in_process:
            outcomes = [
                train_chunk(self.placed, broadcast, chunk, mode=mode, seed=self.seed, transforms=self.transforms)
                for chunk in each(chunks, done, size=len)
            ]
        else:
            header = {
                "kind": "train",
                "mode": mode,
                "transforms": transforms_to_list(self.transforms, self.built.method),
            }
            replies = self._distribute(broadcast, chunks, header, done=done)
            outcomes = [
                outcome_from_reply(*reply, built=self.built, broadcast=broadcast, clients=chunk)
                for chunk, reply in zip(chunks, replies, strict=True)
            ]
        return merge_outcomes(outcomes, empty_update(self.built, broadcast, exact=self.transforms.equal_clients))

    @one_thread()
    def predict(self, broadcast: Broadcast, clients: Sequence[Client], *, done: Done = silent) -> list[Tensor]:
        require_own_roles(broadcast, self.built)
        order = sorted(range(len(clients)), key=lambda position: -clients[position].examples)
        chunks = split_chunks([clients[position] for position in order], self._chunk)
        if self._in_process:
            outputs = [predict_clients(self.placed, broadcast, chunk) for chunk in each(chunks, done, size=len)]
        else:
            replies = self._distribute(broadcast, chunks, {"kind": "predict"}, done=done)
            outputs = [outputs_from_reply(tensors, chunk) for chunk, (_, tensors) in zip(chunks, replies, strict=True)]
        flat = dict(zip(order, [output for chunk in outputs for output in chunk], strict=True))
        return [flat[position] for position in range(len(clients))]

    @property
    def _chunk(self) -> int:
        """A model may know a better number. Who is trained alone anyway is handed out alone, so that no worker waits
        for the other's long texts."""
        return int(getattr(self.built.model, "chunk", CHUNK)) if isinstance(self.built.model, Stackable) else 1

    def close(self) -> None:
        """The workers stay for the next run of this process; they end with it."""

    def _distribute(
        self, broadcast: Broadcast, chunks: Sequence[Sequence[Client]], header: dict[str, Any], *, done: Done
    ) -> list[Reply]:
        messages = (
            pack({**header, "users": [client.user for client in chunk]}, clients_to_tensors(chunk)) for chunk in chunks
        )
        return shared_pool(self.workers).run(
            messages,
            setup=setup_message(self.built, self.seed),
            broadcast=broadcast_message(broadcast),
            replied=lambda position: done(len(chunks[position])),
        )


def sort_by_size(clients: Sequence[Client]) -> list[Client]:
    """Busiest first: stacked neighbours have about as much to do, and the long chunks start early."""
    return sorted(clients, key=lambda client: -client.examples)


def split_chunks(clients: Sequence[Client], size: int = CHUNK) -> list[list[Client]]:
    """Even chunks, an even number of them: the cohort alone decides, so that the sums do not depend on the workers."""
    if not clients:
        return []
    count = min(len(clients), 2 * ceil(len(clients) / (2 * size)))
    ends = [round(len(clients) * place / count) for place in range(count + 1)]
    return [list(clients[start:end]) for start, end in pairwise(ends)]
