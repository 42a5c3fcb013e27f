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

NARROWEST, GAP = 12, 2  # of a table: its first column at least, and between columns
LINES = 20  # plain progress lines per run, about

out = Console(highlight=False, markup=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def table(title: str, header: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """A table whose first column is text and whose other columns are numbers, which are not broken."""
    names, lines = list(header), [list(row) for row in rows]
    longest = [max((len(row[place]) for row in lines), default=0) for place in range(1, len(names))]
    room = max(NARROWEST, out.width - sum(longest) - GAP * len(longest))
    made = Table(
        title=title, title_justify="left", title_style="bold", box=None, padding=(0, 0, 0, GAP), pad_edge=False
    )
    # rich adds the padding to a column's greatest width, also of the first, which has none
    made.add_column(names[0], overflow="fold", max_width=room - GAP)
    for name, width in zip(names[1:], longest, strict=True):
        made.add_column(name, justify="right", overflow="fold", min_width=width)
    for row in lines:
        made.add_row(*row)
    return made


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
