"""Divides the questions of a search, and the rows of a step, over threads.

The division does not depend on the number of threads, so that neither does the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import torch

from homespun.core.threads import one_thread
from homespun.decoding.protocol import Scratch, State, count_questions, select_rows

BATCH_ROWS = 256  # questions are searched together up to this number of hypotheses
BLOCK_ROWS = 256  # of one call of `step`; half as many in a single batch, so that two threads share a question

Result = TypeVar("Result")
Spread = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""Applies a function to each item, as `map` does."""


@dataclass(frozen=True)
class Blocks:
    """How the rows of a step are divided."""

    rows: int  # most rows of a block
    spread: Spread
    scratch: Scratch

    def cut(self, rows: int) -> list[slice]:
        """Blocks of about equal size."""
        count = -(-rows // self.rows)
        cuts = [rows * place // count for place in range(count + 1)]
        return [slice(first, last) for first, last in pairwise(cuts)]


def search_in_batches(
    search: Callable[[State, Blocks], list[Result]], state: State, *, per_question: int, threads: int
) -> list[Result]:
    """The results of a search for each question.

    per_question: number of hypotheses of a question
    """
    size = max(1, BATCH_ROWS // per_question)
    batches = [select_rows(state, slice(first, first + size)) for first in range(0, count_questions(state), size)]
    with one_thread(), _spread_over(threads) as spread:
        single = len(batches) == 1
        blocks = Blocks(BLOCK_ROWS // 2, spread, Scratch()) if single else Blocks(BLOCK_ROWS, map, Scratch())
        found = (map if single else spread)(without_grad(lambda batch: search(batch, blocks)), batches)
        return [result for results in found for result in results]


@contextmanager
def _spread_over(threads: int) -> Iterator[Spread]:
    """A `map` that uses this number of threads."""
    if threads == 1:
        yield map
        return
    with ThreadPoolExecutor(threads) as pool:
        yield pool.map


def without_grad(work: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function without autograd, also in other threads."""

    def run(item: Any) -> Any:
        with torch.no_grad():
            return work(item)

    return run
