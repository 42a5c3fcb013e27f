"""The default trainer: it splits a cohort into chunks of clients and distributes them to persistent worker processes.

The chunks depend only on the cohort, and their sums are added in a fixed order: results do not depend on the number of
workers or on which of them is faster.
"""

from __future__ import annotations

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
from homespun.system.machine import cpu_cores

# Maximum number of clients per chunk: large enough for efficient stacked matrix products, small enough that activations
# stay in the cache (measured; see docs/decisions/0002-stacked-lstm.md).
CHUNK = 25


@dataclass
class CohortTrainer:
    """With `workers=0`, clients are trained in this process."""

    built: BuiltMethod
    seed: int
    workers: int = field(default_factory=cpu_cores)
    transforms: Transforms = NO_TRANSFORMS
    device: str = CPU  # on any device but the CPU, clients are trained in this process

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
        alone = mode == "personalize" and self.built.method.personalize.alone
        single = alone and len(clients) == 1 and self.device == CPU  # one client's choices share the cores
        chunks = split_chunks(sort_by_size(sort_by_user(clients)), 1 if alone else self._chunk)
        if self._in_process or single:
            outcomes = [
                train_chunk(
                    self.placed,
                    broadcast,
                    chunk,
                    mode=mode,
                    seed=self.seed,
                    transforms=self.transforms,
                    threads=cpu_cores() if single else 1,
                )
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
        """Maximum number of clients per chunk; a model may set its own. Clients of models that cannot be stacked are
        distributed one by one, so that no worker waits for another's long texts. So are clients that personalize
        alone."""
        return int(getattr(self.built.model, "chunk", CHUNK)) if isinstance(self.built.model, Stackable) else 1

    def close(self) -> None:
        """Do nothing: the workers are shared with later runs of this process and end with it."""

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
    """Sort by number of examples, largest first: clients of a chunk are similar, and long chunks start early."""
    return sorted(clients, key=lambda client: -client.examples)


def split_chunks(clients: Sequence[Client], size: int = CHUNK) -> list[list[Client]]:
    """Split clients into an even number of chunks of nearly equal size, which depend only on the cohort."""
    if not clients:
        return []
    count = min(len(clients), 2 * ceil(len(clients) / (2 * size)))
    ends = [round(len(clients) * place / count) for place in range(count + 1)]
    return [list(clients[start:end]) for start, end in pairwise(ends)]
