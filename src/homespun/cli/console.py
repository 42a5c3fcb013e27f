"""Terminal output: tables, and progress as a bar on a terminal or as plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isnan

from rich.console import Group
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from homespun.cli import notices
from homespun.core.escaping import escape_unprintable
from homespun.core.progress import Progress
from homespun.core.records import RoundRecord
from homespun.report.table_model import metric_named
from homespun.runs.run import Run
from homespun.runs.training import CurvePoint
from homespun.system.terminal import Terminal, say

GAP = 2  # between the columns of a table
LINES = 20  # approximate number of plain progress lines per run
LINE_INTERVAL_S = 10.0  # minimum time between plain progress lines

out = Terminal(highlight=False, markup=False, soft_wrap=True)
err = Terminal(stderr=True, highlight=False, markup=False, soft_wrap=True)


def table(title: str, header: Iterable[str], rows: Iterable[Iterable[str]]) -> Group:
    """A table with one column of text and further columns of numbers, without line breaks inside words or numbers.
    Columns that do not fit the width are continued below."""
    shown = [[escape_unprintable(cell) for cell in row] for row in (header, *rows)]
    columns = list(zip(*shown, strict=True))
    first, numbers = columns[0], columns[1:]
    names, whole = max(map(len, first)), [max(map(len, column)) for column in numbers]
    if names + sum(whole) + GAP * len(whole) > out.width:  # wrap headings, and names if necessary
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
    """One table of the given columns (heading and cells) with their widths."""
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


class Count(ProgressColumn):
    """Shows rounds as 3/10 and internal steps as 30 %."""

    def render(self, task: Task) -> Text:
        whole = f"{task.completed:.0f}/{task.total or 0:.0f}"
        return Text(f"{task.percentage:.0f} %" if task.fields.get("percent") else whole)


def bar(console: Terminal, *, transient: bool = False) -> Bars:
    """A progress bar with a note per task."""
    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        Count(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeRemainingColumn(),
        console=console,
        transient=transient,
    )


@contextmanager
def counting(console: Terminal, title: str, *, total: int) -> Iterator[Callable[[int], None]]:
    """Give a function that takes the number of finished items; the first call reports those of an earlier run."""
    started: list[float] = []
    start = 0

    def line(done: int) -> None:
        nonlocal start
        if not started:
            started.append(time.monotonic())
            start = done
        elif done % max(1, total // LINES) == 0 or done == total:
            left_s = (time.monotonic() - started[0]) / (done - start) * (total - done)
            console.print(f"{title}: {done:,}/{total:,}, {left_s:.0f} s left")

    if not console.is_terminal:
        yield line
        return
    with bar(console) as progress:
        task = progress.add_task(title, total=total, note="")
        yield lambda done: progress.update(task, completed=done)


@dataclass(frozen=True)
class LongTask:
    """A long task in progress."""

    task: str
    began: float

    def line(self, progress: Progress, *, title: str) -> str:
        said = f"{title}: {progress}" if title else str(progress)
        if not progress.done:
            return said
        left_s = (time.monotonic() - self.began) / progress.done * (progress.total - progress.done)
        return f"{said}, {left_s:.0f} s left"


@dataclass
class Reporter:
    """Shows the events of runs and the progress of long tasks. With `to_stderr`, stdout is reserved for results. As a
    context manager, it removes its progress bar at the end."""

    to_stderr: bool = False
    title: str = ""  # prefix of plain lines; `following` sets it to the title of the run
    _latest: str = ""
    _noticed: set[str] = field(default_factory=set)  # notices already printed
    _started: float = field(default_factory=lambda: time.monotonic())
    _bars: Bars | None = None  # on a terminal, while a bar is shown
    _alone: bool = False  # whether the bars show a long task only, outside of a run
    _bar: TaskID | None = None  # of the long task
    _task: LongTask | None = None
    _printed_at: float = field(default_factory=lambda: time.monotonic())  # time of the last plain line

    @property
    def console(self) -> Terminal:
        return err if self.to_stderr else out

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *problem: object) -> None:
        self._end_task()

    @contextmanager
    def following(self, run: Run, title: str) -> Iterator[Callable[[RoundRecord | CurvePoint], None]]:
        """Give a function that shows each event of this run's training. Notices go to stderr, each once."""
        self._end_task()
        for notice in notices.before(run):
            if notice not in self._noticed:
                err.print(f"{title}: {notice}")
            self._noticed.add(notice)
        with self._following(run, title) as show:
            yield show
        for notice in notices.after(run):
            err.print(f"{title}: {notice}")

    @contextmanager
    def _following(self, run: Run, title: str) -> Iterator[Callable[[RoundRecord | CurvePoint], None]]:
        self._latest, self.title, self._started = "", title, time.monotonic()
        start = run.state.round
        if run.settings.privacy is not None and run.settings.privacy.insecure:
            err.print(f"{title}: warning: INSECURE: noise and cohorts come from the seed and give no protection")
        if not self.console.is_terminal:
            yield lambda event: self._line(run, title, event, start=start)
            if run.state.round:
                self._print_line(f"{title}: final evaluation")
            self._started = time.monotonic()
            return
        with bar(self.console) as bars:
            self._bars = bars
            task = bars.add_task(title, total=run.total_rounds, completed=start, note="")
            try:
                yield lambda event: bars.update(task, completed=event.round, note=self._note(event))
            finally:
                if self._bar is not None:
                    bars.remove_task(self._bar)
                self._task, self._bars, self._bar = None, None, None

    def show_progress(self, progress: Progress) -> None:
        """Show the progress of a long task, as a bar on a terminal and as occasional lines elsewhere."""
        finished = progress.done >= progress.total
        if self._task is None or self._task.task != progress.task:
            if finished:
                return
            self._end_task()
            self._task = LongTask(progress.task, time.monotonic())
            self._begin_bar(progress)
        if self._bars is not None and self._bar is not None:
            self._bars.update(self._bar, completed=progress.done)
        elif time.monotonic() - self._printed_at >= self._line_interval_s:
            self._print_line(self._task.line(progress, title=self.title))
        if finished:
            self._end_task()

    def _begin_bar(self, progress: Progress) -> None:
        """Show the bar of a long task. During a run it is reused, because a new bar per round would flicker."""
        if not self.console.is_terminal:
            return
        if self._bars is None:
            self._bars, self._alone = bar(self.console, transient=True), True
            self._bars.start()
        if self._bar is None:
            self._bar = self._bars.add_task(progress.task, total=progress.total, note="", percent=True)
        else:
            self._bars.reset(self._bar, total=progress.total, description=progress.task)

    @property
    def _line_interval_s(self) -> float:
        """The time between plain lines, which grows with the run to keep logs short."""
        return max(LINE_INTERVAL_S, (time.monotonic() - self._started) / LINES)

    def _end_task(self) -> None:
        self._task = None
        if self._alone and self._bars is not None:
            self._bars.stop()
            self._bars, self._bar, self._alone = None, None, False

    def _print_line(self, line: str) -> None:
        say(line, to=sys.stderr if self.to_stderr else sys.stdout)
        self._printed_at = time.monotonic()

    def _note(self, event: RoundRecord | CurvePoint) -> str:
        """The note of the bar: the loss of the round and the latest score."""
        if isinstance(event, CurvePoint):
            self._latest = _scored(event)
            return self._latest
        return ", ".join(part for part in (_loss(event), self._latest) if part)

    def _line(self, run: Run, title: str, event: RoundRecord | CurvePoint, *, start: int) -> None:
        if isinstance(event, CurvePoint):
            said = _scored(event)
        elif event.round % max(1, run.total_rounds // LINES) and event.round != run.total_rounds:
            return
        else:
            done, left = event.round - start, run.total_rounds - event.round
            remaining_s = (time.monotonic() - self._started) / done * left
            parts = (f"round {event.round}/{run.total_rounds}", _loss(event), f"{remaining_s:.0f} s left")
            said = ", ".join(part for part in parts if part)
        if said:
            self._print_line(f"{title}: {said}")


def _loss(event: RoundRecord) -> str:
    return "" if isnan(event.loss) else f"loss {event.loss:.3f}"  # not disclosed with privacy


def _scored(event: CurvePoint) -> str:
    metric, value = event.evaluation.headline
    return "" if isnan(value) else f"{metric} {metric_named(metric).text_with_unit(value)} after round {event.round}"
