"""What a person sees while homespun works: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isnan

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from homespun.report.cells import metric_named
from homespun.run import RoundRecord, Run
from homespun.training import Evaluated

GAP = 2  # between the columns of a table
LINES = 20  # plain progress lines per run, about

out = Console(highlight=False, markup=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def table(title: str, header: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """A table whose first column is text and whose other columns are numbers; neither words nor numbers are broken."""
    columns = list(zip(*[list(header), *map(list, rows)], strict=True))
    first, numbers = columns[0], columns[1:]
    names, whole = max(map(len, first)), [max(map(len, column)) for column in numbers]
    if names + sum(whole) + GAP * len(whole) > out.width:  # then headings are wrapped, and names as far as they have to
        whole = [max(_longest_word(column[0]), *map(len, column[1:]), 0) for column in numbers]
        room = out.width - sum(whole) - GAP * len(whole)
        names = min(names, max(room, *map(_longest_word, first)))
    made = Table(
        title=title, title_justify="left", title_style="bold", box=None, padding=(0, 0, 0, GAP), pad_edge=False
    )
    made.add_column(first[0], overflow="fold", width=names)
    for column, width in zip(numbers, whole, strict=True):
        made.add_column(column[0], justify="right", overflow="fold", width=width)
    for row in zip(*[column[1:] for column in columns], strict=True):
        made.add_row(*row)
    return made


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def bar(console: Console) -> Progress:
    """A progress bar whose tasks have a note."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeRemainingColumn(),
        console=console,
    )


@contextmanager
def counting(console: Console, title: str, *, total: int) -> Iterator[Callable[[int], None]]:
    """Give a function that takes how many are done, first of all those that were done before."""
    started: list[float] = []
    begun = 0

    def line(done: int) -> None:
        nonlocal begun
        if not started:
            started.append(time.monotonic())
            begun = done
        elif done % max(1, total // LINES) == 0 or done == total:
            left_s = (time.monotonic() - started[0]) / (done - begun) * (total - done)
            console.print(f"{title}: {done:,}/{total:,}, {left_s:.0f} s left")

    if not console.is_terminal:
        yield line
        return
    with bar(console) as progress:
        task = progress.add_task(title, total=total, note="")
        yield lambda done: progress.update(task, completed=done)


@dataclass
class Reporter:
    """Shows the events of one run after another. With `to_stderr`, stdout stays free for results."""

    to_stderr: bool = False
    _latest: str = ""
    _started: float = field(default_factory=time.monotonic)

    @property
    def console(self) -> Console:
        return err if self.to_stderr else out

    @contextmanager
    def following(self, run: Run, title: str) -> Iterator[Callable[[RoundRecord | Evaluated], None]]:
        """Give a function that takes each event of this run's training."""
        self._latest, self._started = "", time.monotonic()
        begun = run.state.round
        if not self.console.is_terminal:
            yield lambda event: self._line(run, title, event, begun=begun)
            return
        with bar(self.console) as progress:
            task = progress.add_task(title, total=run.total_rounds, completed=begun, note="")

            def show(event: RoundRecord | Evaluated) -> None:
                note = self._note(event)
                progress.update(task, completed=event.round, note=note)

            yield show

    def _note(self, event: RoundRecord | Evaluated) -> str:
        if isinstance(event, Evaluated):
            metric, value = event.evaluation.headline
            self._latest = "" if isnan(value) else f"{metric} {metric_named(metric).said(value)}"
            return self._latest
        return f"loss {event.loss:.3f}" + (f", {self._latest}" if self._latest else "")

    def _line(self, run: Run, title: str, event: RoundRecord | Evaluated, *, begun: int) -> None:
        note = self._note(event)
        if isinstance(event, Evaluated):
            return
        every = max(1, run.total_rounds // LINES)
        if event.round % every and event.round != run.total_rounds:
            return
        done, left = event.round - begun, run.total_rounds - event.round
        remaining_s = (time.monotonic() - self._started) / done * left
        line = f"{title}: round {event.round}/{run.total_rounds}, {note}, {remaining_s:.0f} s left"
        print(line, file=sys.stderr if self.to_stderr else sys.stdout, flush=True)
