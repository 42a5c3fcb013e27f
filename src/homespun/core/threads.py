"""Sets the number of compute threads to one, for reproducible results.

Several threads add the terms of a sum in another order, which changes its last bits. Worker processes have one thread;
work in the caller's process uses one as well and then restores the caller's setting.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch with one thread; a context manager and a decorator."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
