"""How far long work is.

The work reports to a callback, and the caller shows what it likes. A run is made with a callback, for instance
`train(..., progress=print)`, and all work on the run reports to it. By default nothing is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar


@dataclass(frozen=True)
class Progress:
    """So much of a task is done."""

    task: str  # "new users with 5 own samples"
    done: int
    total: int

    def __str__(self) -> str:
        return f"{self.task}: {100 * self.done // max(self.total, 1)} %"


Show: TypeAlias = Callable[[Progress], object]
Done: TypeAlias = Callable[[int], object]  # takes how many more are done
Item = TypeVar("Item")


def silent(_: object) -> None:
    """Shows nothing."""


def counted(show: Show, task: str, *, total: int) -> Done:
    """Report the beginning of a task and give the function that counts it."""
    done = 0

    def more(count: int) -> None:
        nonlocal done
        done += count
        show(Progress(task, done, total))

    more(0)
    return more


def each(items: Iterable[Item], done: Done, *, size: Callable[[Item], int] = lambda _: 1) -> Iterator[Item]:
    """The items; when the next one is asked for, the one before counts as done."""
    for item in items:
        yield item
        done(size(item))
