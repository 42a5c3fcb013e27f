"""A pool of worker processes that are started once, and replaced when they end or hang.

Each worker has a socket and a thread of this process that waits for its replies; the caller's thread monitors all
workers. A worker that uses no CPU time for `PATIENCE_S` while it has work is considered hung and killed. A process that
was killed or has ended is replaced: the new one gets the method, the broadcast and the same clients, and its results
are bit-identical.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from homespun.core.errors import WorkerError
from homespun.core.messages import Broadcast, broadcast_to_tensors, pack, unpack
from homespun.core.method import BuiltMethod
from homespun.core.progress import silent
from homespun.system.terminal import say

Reply: TypeAlias = tuple[dict[str, Any], dict[str, Tensor]]

PATIENCE_S = 120.0  # without CPU time; even on a busy machine a running worker gets some every second
POLL_S = 1.0  # between two checks of the workers
REPLACEMENTS = 3  # per call of `run`; more failures are an error

# A worker allocates and frees the same large tensors repeatedly. By default glibc returns them to the kernel each time:
# 36,000 page faults per round of W1 instead of 10, a tenth of the time.
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


def setup_message(built: BuiltMethod, seed: int) -> bytes:
    """Encode what a worker needs to build the method."""
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
    return pack(header, {})


def broadcast_message(broadcast: Broadcast) -> bytes:
    header, tensors = broadcast_to_tensors(broadcast)
    return pack({"kind": "broadcast", **header}, tensors)


class Worker:
    """A worker process with one compute thread, and the parent's end of its socket."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            environment = {**WORKER_ENVIRONMENT, **os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            # -P: do not import files of the current folder in place of libraries
            module, ends = ["-P", "-m", "homespun.engines.process"], [str(theirs.fileno()), str(os.getpid())]
            self.process = subprocess.Popen(
                [sys.executable, *module, *ends], pass_fds=[theirs.fileno()], env=environment
            )
        self._connection = Connection(ours.detach())
        self._setup = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def prepare(self, *, setup: bytes, broadcast: bytes) -> None:
        """Send the method, unless the worker has built it already, and the broadcast."""
        if setup != self._setup:
            self._connection.send_bytes(setup)
            self._setup = setup
        self._connection.send_bytes(broadcast)

    def ask(self, message: bytes) -> bytes:
        self._connection.send_bytes(message)
        return self._connection.recv_bytes()

    def end(self) -> int:
        """Kill the process if it is alive, and return its exit code."""
        self.process.kill()
        code = self.process.wait()
        with contextlib.suppress(OSError):
            self._connection.close()
        return code


@dataclass
class Watch:
    """Detects hung workers. It counts checks, not seconds, so that suspending the whole run is not taken for a hang."""

    patience: int  # number of checks without progress
    _seen: dict[int, tuple[int | None, int]] = field(default_factory=dict)  # pid -> CPU time, checks since it changed

    def is_stalled(self, pid: int, cpu_time: int | None) -> bool:
        """Whether the process has made no progress for too long. An unknown CPU time counts as progress."""
        before, checks = self._seen.get(pid, (None, 0))
        checks = 0 if cpu_time is None or cpu_time != before else checks + 1
        self._seen[pid] = cpu_time, checks
        return checks >= self.patience


def cpu_time(pid: int) -> int | None:
    """Return the CPU time of a process in clock ticks on Linux; None on other systems or if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    user, system = text.rpartition(")")[2].split()[11:13]  # after the name, which may contain anything
    return int(user) + int(system)


class Call:
    """The state of one `WorkerPool.run`, shared by its threads."""

    def __init__(
        self, messages: Iterable[bytes], *, setup: bytes, broadcast: bytes, replied: Callable[[int], object]
    ) -> None:
        self.setup, self.broadcast = setup, broadcast
        self.lock = threading.Lock()
        self.replies: dict[int, Reply] = {}
        self.busy: dict[int, Worker] = {}  # index in the pool -> worker with a pending request
        self.stalled: set[int] = set()  # pids
        self.replaced = 0
        self.stopped = False
        self._messages, self._replied = enumerate(messages), replied

    def next(self) -> tuple[int, bytes] | None:
        """Return the next message and its position; None if there are no more."""
        with self.lock:  # messages are encoded one by one, when a worker is free
            return None if self.stopped else next(self._messages, None)

    def take(self, position: int, reply: Reply) -> None:
        with self.lock:
            self.replies[position] = reply
            self._replied(position)

    def stop(self) -> None:
        with self.lock:
            self.stopped = True


class WorkerPool:
    """A pool of workers. Threads can share it: calls of `run` are serialized."""

    def __init__(self, workers: int, *, patience_s: float = PATIENCE_S) -> None:
        self.workers = [Worker() for _ in range(workers)]
        self._size, self._patience = workers, max(1, round(patience_s / POLL_S))
        self._turn = threading.Lock()

    def run(
        self,
        messages: Iterable[bytes],
        *,
        setup: bytes,
        broadcast: bytes,
        replied: Callable[[int], object] = silent,
    ) -> list[Reply]:
        """Send each message to the next free worker and return the replies in the order of the messages. `replied` is
        called with the position of each answered message."""
        with self._turn, ThreadPoolExecutor(self._size) as lanes:
            if not self.workers:  # closed after a failure
                self.workers = [Worker() for _ in range(self._size)]
            call = Call(messages, setup=setup, broadcast=broadcast, replied=replied)
            watch = Watch(self._patience)
            try:
                at_work = {lanes.submit(self._serve, call, place) for place in range(self._size)}
                while at_work:
                    done, at_work = wait(at_work, timeout=POLL_S, return_when=FIRST_EXCEPTION)
                    for lane in done:
                        lane.result()  # raises what its thread raised
                    self._kill_stalled(call, watch)
            except BaseException:  # including Ctrl-C: pending results are discarded
                call.stop()
                self.close()
                raise
            return [call.replies[position] for position in range(len(call.replies))]

    def _serve(self, call: Call, place: int) -> None:
        """Runs in a thread: send messages to the worker at index `place` until all are answered."""
        prepared: Worker | None = None
        while (item := call.next()) is not None:
            position, message = item
            while position not in call.replies:
                worker = call.busy[place] = self.workers[place]
                try:
                    if worker is not prepared:
                        worker.prepare(setup=call.setup, broadcast=call.broadcast)
                        prepared = worker
                    answer = worker.ask(message)
                except (EOFError, OSError) as error:
                    self._replace(call, place, error)
                    continue
                finally:
                    del call.busy[place]
                header, tensors = unpack(answer)
                if "error" in header:
                    raise WorkerError(f"a worker failed:\n{header['error']}")
                call.take(position, (header, tensors))

    def _replace(self, call: Call, place: int, error: Exception) -> None:
        """Replace a worker whose connection broke by a new process."""
        with call.lock:
            if call.stopped:
                raise error
            worker = self.workers[place]
            code, idle_s = worker.end(), self._patience * POLL_S
            cause = f"used no CPU time for {idle_s:.0f} s" if worker.pid in call.stalled else f"ended with {code}"
            call.replaced += 1
            if call.replaced > REPLACEMENTS:
                raise WorkerError(
                    f"worker process {worker.pid} {cause}, after {REPLACEMENTS} others were replaced. This round is "
                    "lost. If memory ran out, use fewer workers (--set workers=1). The same command resumes the run."
                ) from error
            notice = f"homespun: worker process {worker.pid} {cause}; it is replaced, and its clients are trained again"
            say(notice, to=sys.stderr)
            self.workers[place] = Worker()

    def _kill_stalled(self, call: Call, watch: Watch) -> None:
        """Kill hung workers. The thread that waits for a killed worker replaces it."""
        for worker in call.busy.copy().values():
            if worker.pid not in call.stalled and watch.is_stalled(worker.pid, cpu_time(worker.pid)):
                call.stalled.add(worker.pid)
                worker.process.kill()

    def close(self) -> None:
        """End all workers; the next `run` starts new ones."""
        workers, self.workers = self.workers, []
        for worker in workers:
            worker.end()


_pools: dict[int, WorkerPool] = {}
_pools_lock = threading.Lock()


def shared_pool(workers: int) -> WorkerPool:
    """Return the pool of this process. Starting one takes seconds, so all runs share it."""
    with _pools_lock:
        if workers not in _pools:
            _pools[workers] = WorkerPool(workers)
        return _pools[workers]


@atexit.register
def close_pools() -> None:
    for pool in _pools.values():
        pool.close()
    _pools.clear()
