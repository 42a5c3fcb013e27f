"""The default engine: a cohort's clients in fixed chunks, shared among a few persistent processes.

The chunks depend on the cohort alone and their sums are added in order, so that the numbers do not
depend on how many workers there are or which of them was faster.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from math import ceil
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from torch import Tensor

from homespun.core.errors import WorkerError
from homespun.core.messages import Broadcast, pack, prefixed, strip, unpack, update_from_tensors
from homespun.core.method import Built, Stackable
from homespun.core.tree import Tree
from homespun.engines.engine import Client, Outcome, Work, empty_update, in_user_order, require_own_roles
from homespun.engines.stacked import merged, predict_together
from homespun.engines.summed import work_cohort
from homespun.engines.worker import clients_to_tensors
from homespun.privacy.guard import Guard

# Clients per chunk, at most: large enough to fill a stacked matrix product, small enough that its activations
# stay in the cache (measured; see docs/decisions/0002-stacked-lstm.md).
CHUNK = 25

# A worker allocates and frees the same large tensors over and over. Left to itself glibc gives them back to the
# kernel each time: 36,000 page faults a round of W1 instead of 10, a tenth of the time.
WORKER_ENVIRONMENT = {
    "GLIBC_TUNABLES": ":".join(
        f"glibc.malloc.{name}={value}"
        for name, value in (
            ("hugetlb", 1),
            ("mmap_threshold", 2**30),
            ("trim_threshold", 2**32 - 1),
            ("top_pad", 2**26),
        )
    )
}

Item = TypeVar("Item")


def default_workers() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class CohortEngine:
    """`workers=0` does the same work in this process."""

    built: Built
    seed: int
    workers: int = field(default_factory=default_workers)
    guard: Guard | None = None

    def work(self, broadcast: Broadcast, clients: Sequence[Client], *, work: Work = "phases") -> Outcome:
        require_own_roles(broadcast, self.built)
        chunks = chunked(by_size(in_user_order(clients)), self._chunk)
        if self.workers == 0:
            outcomes = [
                work_cohort(self.built, broadcast, chunk, work=work, seed=self.seed, guard=self.guard)
                for chunk in chunks
            ]
        else:
            header = {"kind": "work", "work": work, "guard": None if self.guard is None else self.guard.to_dict()}
            outcomes = self._distribute(broadcast, chunks, header=header, read=_read_outcome)
        return merged(outcomes, empty_update(self.built, broadcast, self.guard))

    def predict(self, broadcast: Broadcast, clients: Sequence[Client]) -> list[Tensor]:
        require_own_roles(broadcast, self.built)
        order = sorted(range(len(clients)), key=lambda position: -clients[position].examples)
        chunks = chunked([clients[position] for position in order], self._chunk)
        if self.workers == 0:
            outputs = [predict_together(self.built, broadcast, chunk) for chunk in chunks]
        else:
            outputs = self._distribute(broadcast, chunks, header={"kind": "predict"}, read=_read_outputs)
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
        self,
        broadcast: Broadcast,
        chunks: Sequence[Sequence[Client]],
        *,
        header: dict[str, Any],
        read: Callable[[Sequence[Client], dict[str, Any], Tree], Item],
    ) -> list[Item]:
        pool = shared_pool(self.workers)
        pool.prepare(self.built, self.seed)
        pool.broadcast(broadcast)
        messages = (
            pack({**header, "users": [client.user for client in chunk]}, clients_to_tensors(chunk)) for chunk in chunks
        )
        replies = pool.run(messages)
        return [read(chunk, *reply) for chunk, reply in zip(chunks, replies, strict=True)]


def by_size(clients: Sequence[Client]) -> list[Client]:
    """Busiest first: stacked neighbours have about as much to do, and the long chunks start early."""
    return sorted(clients, key=lambda client: -client.examples)


def chunked(clients: Sequence[Client], size: int = CHUNK) -> list[list[Client]]:
    """Even chunks, an even number of them: the cohort alone decides, so that the sums do not depend on the workers."""
    if not clients:
        return []
    count = min(len(clients), 2 * ceil(len(clients) / (2 * size)))
    ends = [round(len(clients) * place / count) for place in range(count + 1)]
    return [list(clients[start:end]) for start, end in pairwise(ends)]


def _read_outcome(chunk: Sequence[Client], header: dict[str, Any], tensors: Tree) -> Outcome:
    # Names are matched by position: a user's name is data and never becomes part of a key.
    refused = {chunk[int(position)].user: reason for position, reason in header["refused"].items()}
    private = {
        client.user: strip(f"private/{position}", tensors)
        for position, client in enumerate(chunk)
        if client.user not in refused
    }
    sent = {name: tensor for name, tensor in tensors.items() if not name.startswith("private/")}
    return Outcome(update_from_tensors(header, sent), private, refused)


def _read_outputs(chunk: Sequence[Client], header: dict[str, Any], tensors: Tree) -> list[Tensor]:
    return [tensors[str(position)] for position in range(len(chunk))]


class WorkerPool:
    """A few processes with one thread each, a socket to each, one message under way at a time."""

    def __init__(self, workers: int) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.connections: list[Connection] = []
        self._prepared: Any = None
        for _ in range(workers):
            ours, theirs = socket.socketpair()
            with theirs:
                environment = {**WORKER_ENVIRONMENT, **os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
                # -P: a file in the current folder that is named like a library is not imported in its place
                module, ends = ["-P", "-m", "homespun.engines.process"], [str(theirs.fileno()), str(os.getpid())]
                command = [sys.executable, *module, *ends]
                self.processes.append(subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment))
            self.connections.append(Connection(ours.detach()))

    def prepare(self, built: Built, seed: int) -> None:
        """Let every worker build this method, unless it is the one they have."""
        method = built.method
        header = {
            "kind": "setup",
            "origin": method.origin,
            "files": [asdict(file) for file in method.files],
            "settings": method.settings.model_dump(mode="json"),
            "task": asdict(method.task),
            "seed": seed,
            "path": sys.path,
        }
        if header != self._prepared:
            self._send_all(pack(header, {}))
            self._prepared = header

    def broadcast(self, broadcast: Broadcast) -> None:
        tensors = {**prefixed("federated", broadcast.federated), **prefixed("keyed", broadcast.keyed)}
        self._send_all(pack({"kind": "broadcast", "round": broadcast.round}, tensors))

    def run(self, messages: Any) -> list[tuple[dict[str, Any], dict[str, Tensor]]]:
        """Hand out messages as workers become free; the replies come back in the messages' order."""
        replies: dict[int, tuple[dict[str, Any], dict[str, Tensor]]] = {}
        waiting, idle = enumerate(messages), deque(self.connections)
        under_way: dict[Connection, int] = {}
        try:
            while True:
                while idle and (item := next(waiting, None)) is not None:
                    connection = idle.popleft()
                    under_way[connection] = item[0]
                    connection.send_bytes(item[1])
                if not under_way:
                    return [replies[position] for position in range(len(replies))]
                for ready in wait(list(under_way)):
                    assert isinstance(ready, Connection)
                    header, tensors = unpack(ready.recv_bytes())
                    if "error" in header:
                        raise WorkerError(f"a worker failed:\n{header['error']}")
                    replies[under_way.pop(ready)] = header, tensors
                    idle.append(ready)
        except (EOFError, OSError) as error:
            raise WorkerError(self._obituary()) from error
        finally:
            if under_way:  # interrupted or failed: what the workers hold is of no use any more
                self.close()

    def _send_all(self, message: bytes) -> None:
        try:
            for connection in self.connections:
                connection.send_bytes(message)
        except BaseException as error:  # also Ctrl-C: half a message would spoil the next one
            self.close()
            if isinstance(error, OSError):
                raise WorkerError(self._obituary()) from error
            raise

    def _obituary(self) -> str:
        ends = [f"pid {process.pid} ended with {process.poll()}" for process in self.processes if process.poll()]
        return (
            f"a worker process is gone ({', '.join(ends) or 'its connection closed'}); this round is "
            "dropped. Start the same command again to go on."
        )

    @property
    def alive(self) -> bool:
        return bool(self.connections) and all(process.poll() is None for process in self.processes)

    def close(self) -> None:
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.close()
        self.connections = []
        for process in self.processes:
            process.kill()
            process.wait()


_pools: dict[int, WorkerPool] = {}


def shared_pool(workers: int) -> WorkerPool:
    """The pool of this process: starting one costs seconds, so runs one after another share it."""
    pool = _pools.get(workers)
    if pool is None or not pool.alive:
        if pool is not None:
            pool.close()
        pool = _pools[workers] = WorkerPool(workers)
    return pool


@atexit.register
def close_pools() -> None:
    for pool in _pools.values():
        pool.close()
    _pools.clear()
