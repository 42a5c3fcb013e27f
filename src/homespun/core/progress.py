"""Progress of long operations.

Operations report to a callback. A run has one, for instance `train(..., progress=print)`, which receives the progress
of all operations on the run. By default nothing is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar


@dataclass(frozen=True)
class Progress:
    """How much of a task is done."""

    task: str  # "new users with 5 own samples"
    done: int
    total: int

    def __str__(self) -> str:
        return f"{self.task}: {100 * self.done // max(self.total, 1)} %"


Show: TypeAlias = Callable[[Progress], object]
Done: TypeAlias = Callable[[int], object]  # called with the number of items finished since the last call
Item = TypeVar("Item")


def silent(_: object) -> None:
    """A callback that does nothing."""


def start_count(show: Show, task: str, *, total: int) -> Done:
    """Report the start of a task and return the function that counts finished items."""
    done = 0

    def more(count: int) -> None:
        nonlocal done
        done += count
        show(Progress(task, done, total))

    more(0)
    return more


def each(items: Iterable[Item], done: Done, *, size: Callable[[Item], int] = lambda _: 1) -> Iterator[Item]:
    """Yield the items; requesting the next item counts the previous one as done."""
    for item in items:
        yield item
        done(size(item))
