"""How many threads compute: one, wherever numbers are made that a seed should give again.

A sum that is split among threads is added in another order and ends with other bits. Worker processes have one thread
each; work in the caller's process gets one as well, and leaves the caller's setting as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread, as a `with` block or a decorator."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
