"""Sets the number of compute threads to one, for reproducible results.

Several threads add the terms of a sum in another order, which changes its last bits. Worker processes have one thread;
work in the caller's process uses one as well and then restores the caller's setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch with one thread; a context manager and a decorator."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def map_in_threads(work: Callable[[Item], Result], items: Sequence[Item], *, threads: int) -> list[Result]:
    """The result of each item, computed by this number of threads, each with one compute thread of torch.

    Results do not depend on the number of threads. Autograd's mode belongs to a thread, so `work` sets its own.
    """
    if threads == 1 or len(items) < 2:
        return list(map(work, items))
    with one_thread(), ThreadPoolExecutor(min(threads, len(items))) as pool:
        return list(pool.map(work, items))
