"""What a person sees while homespun works: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isnan

from rich.console import Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from homespun.core.spelling import harmless
from homespun.report.cells import metric_named
from homespun.run import RoundRecord, Run
from homespun.terminal import Terminal, say
from homespun.training import Evaluated

GAP = 2  # between the columns of a table
LINES = 20  # plain progress lines per run, about

out = Terminal(highlight=False, markup=False, soft_wrap=True)
err = Terminal(stderr=True, highlight=False, markup=False, soft_wrap=True)


def table(title: str, header: Iterable[str], rows: Iterable[Iterable[str]]) -> Group:
    """A table whose first column is text and whose other columns are numbers; neither words nor numbers are broken.
    Where they have no room beside each other, the table goes on below with the columns that are left."""
    shown = [[harmless(cell) for cell in row] for row in (header, *rows)]
    columns = list(zip(*shown, strict=True))
    first, numbers = columns[0], columns[1:]
    names, whole = max(map(len, first)), [max(map(len, column)) for column in numbers]
    if names + sum(whole) + GAP * len(whole) > out.width:  # then headings are wrapped, and names as far as they have to
        whole = [max(_longest_word(column[0]), *map(len, column[1:]), 0) for column in numbers]
        room = out.width - sum(whole) - GAP * len(whole)
        names = min(names, max(room, *map(_longest_word, first)))
    made: list[Table] = []
    start = 0
    while start < len(numbers) or not made:
        end = start + 1
        while end < len(numbers) and names + sum(whole[start : end + 1]) + GAP * (end + 1 - start) <= out.width:
            end += 1
        some = zip(numbers[start:end], whole[start:end], strict=True)
        made.append(_part("" if start else title, (first, names), list(some)))
        start = end
    return Group(*[part for one in made for part in ("", one)][1:])


def _part(title: str, names: tuple[Sequence[str], int], numbers: Sequence[tuple[Sequence[str], int]]) -> Table:
    """One table of columns, each a heading and its cells, with their widths."""
    made = Table(
        title=title or None, title_justify="left", title_style="bold", box=None, padding=(0, 0, 0, GAP), pad_edge=False
    )
    made.add_column(names[0][0], overflow="fold", width=names[1])
    for column, width in numbers:
        made.add_column(column[0], justify="right", overflow="fold", width=width)
    for row in zip(names[0][1:], *[column[1:] for column, _ in numbers], strict=True):
        made.add_row(*row)
    return made


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def bar(console: Terminal) -> Progress:
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
def counting(console: Terminal, title: str, *, total: int) -> Iterator[Callable[[int], None]]:
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
    def console(self) -> Terminal:
        return err if self.to_stderr else out

    @contextmanager
    def following(self, run: Run, title: str) -> Iterator[Callable[[RoundRecord | Evaluated], None]]:
        """Give a function that takes each event of this run's training."""
        self._latest, self._started = "", time.monotonic()
        begun = run.state.round
        if run.plan is not None and run.plan.settings.insecure:
            err.print(f"{title}: INSECURE, its noise and cohorts come from the seed and protect nobody")
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
        """For the bar: the round's loss, and the latest score."""
        if isinstance(event, Evaluated):
            self._latest = _scored(event)
            return self._latest
        return ", ".join(part for part in (_loss(event), self._latest) if part)

    def _line(self, run: Run, title: str, event: RoundRecord | Evaluated, *, begun: int) -> None:
        if isinstance(event, Evaluated):
            said = _scored(event)
        elif event.round % max(1, run.total_rounds // LINES) and event.round != run.total_rounds:
            return
        else:
            done, left = event.round - begun, run.total_rounds - event.round
            remaining_s = (time.monotonic() - self._started) / done * left
            parts = (f"round {event.round}/{run.total_rounds}", _loss(event), f"{remaining_s:.0f} s left")
            said = ", ".join(part for part in parts if part)
        if said:
            say(f"{title}: {said}", to=sys.stderr if self.to_stderr else sys.stdout)


def _loss(event: RoundRecord) -> str:
    return "" if isnan(event.loss) else f"loss {event.loss:.3f}"  # under privacy it is nobody's to know


def _scored(event: Evaluated) -> str:
    metric, value = event.evaluation.headline
    return "" if isnan(value) else f"{metric} {metric_named(metric).said(value)} after round {event.round}"
