"""What a person sees while homespun works: a progress bar on a terminal, plain lines elsewhere."""

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
from homespun.core.progress import Progress
from homespun.core.records import RoundRecord
from homespun.core.spelling import harmless
from homespun.report.table_model import metric_named
from homespun.runs.run import Run
from homespun.runs.training import Evaluated
from homespun.system.terminal import Terminal, say

GAP = 2  # between the columns of a table
LINES = 20  # plain progress lines per run, about
QUIET_S = 10.0  # of work without a line at least, where there is no terminal

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


class Count(ProgressColumn):
    """Rounds as 3/10; what is counted in steps of no meaning to a reader as 30 %."""

    def render(self, task: Task) -> Text:
        whole = f"{task.completed:.0f}/{task.total or 0:.0f}"
        return Text(f"{task.percentage:.0f} %" if task.fields.get("percent") else whole)


def bar(console: Terminal, *, transient: bool = False) -> Bars:
    """A progress bar whose tasks have a note."""
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


@dataclass(frozen=True)
class Stretch:
    """Long work that is under way."""

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
    """Shows the events of one run after another, and how far long work is. With `to_stderr`, stdout stays free for
    results. As a context, it leaves no bar behind."""

    to_stderr: bool = False
    title: str = ""  # before plain lines; a run that is followed gives its own
    _latest: str = ""
    _noticed: set[str] = field(default_factory=set)  # notices that were printed
    _started: float = field(default_factory=lambda: time.monotonic())
    _bars: Bars | None = None  # on a terminal, while anything is shown
    _alone: bool = False  # whether they are there for a stretch only, not for a run
    _bar: TaskID | None = None  # the stretch's
    _stretch: Stretch | None = None
    _said: float = field(default_factory=lambda: time.monotonic())  # when a plain line was printed last

    @property
    def console(self) -> Terminal:
        return err if self.to_stderr else out

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *problem: object) -> None:
        self._end_stretch()

    @contextmanager
    def following(self, run: Run, title: str) -> Iterator[Callable[[RoundRecord | Evaluated], None]]:
        """Give a function that takes each event of this run's training; notices before and after it go to stderr, each
        once."""
        self._end_stretch()
        for notice in notices.before(run):
            if notice not in self._noticed:
                err.print(f"{title}: {notice}")
            self._noticed.add(notice)
        with self._following(run, title) as show:
            yield show
        for notice in notices.after(run):
            err.print(f"{title}: {notice}")

    @contextmanager
    def _following(self, run: Run, title: str) -> Iterator[Callable[[RoundRecord | Evaluated], None]]:
        self._latest, self.title, self._started = "", title, time.monotonic()
        begun = run.state.round
        if run.settings.privacy is not None and run.settings.privacy.insecure:
            err.print(f"{title}: INSECURE, its noise and cohorts come from the seed and protect nobody")
        if not self.console.is_terminal:
            yield lambda event: self._line(run, title, event, begun=begun)
            if run.state.round:
                self._say(f"{title}: final evaluation")
            self._started = time.monotonic()
            return
        with bar(self.console) as bars:
            self._bars = bars
            task = bars.add_task(title, total=run.total_rounds, completed=begun, note="")
            try:
                yield lambda event: bars.update(task, completed=event.round, note=self._note(event))
            finally:
                if self._bar is not None:
                    bars.remove_task(self._bar)
                self._stretch, self._bars, self._bar = None, None, None

    def stretch(self, progress: Progress) -> None:
        """Show how far long work is: a bar of its own on a terminal, a line now and then elsewhere."""
        finished = progress.done >= progress.total
        if self._stretch is None or self._stretch.task != progress.task:
            if finished:
                return
            self._end_stretch()
            self._stretch = Stretch(progress.task, time.monotonic())
            self._begin_bar(progress)
        if self._bars is not None and self._bar is not None:
            self._bars.update(self._bar, completed=progress.done)
        elif time.monotonic() - self._said >= self._quiet_s:
            self._say(self._stretch.line(progress, title=self.title))
        if finished:
            self._end_stretch()

    def _begin_bar(self, progress: Progress) -> None:
        """Beside a run's rounds it is always the same one: a bar that comes and goes with every round would flicker."""
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
    def _quiet_s(self) -> float:
        """Ever longer, so that hours of work do not fill a log."""
        return max(QUIET_S, (time.monotonic() - self._started) / LINES)

    def _end_stretch(self) -> None:
        self._stretch = None
        if self._alone and self._bars is not None:
            self._bars.stop()
            self._bars, self._bar, self._alone = None, None, False

    def _say(self, line: str) -> None:
        say(line, to=sys.stderr if self.to_stderr else sys.stdout)
        self._said = time.monotonic()

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
            self._say(f"{title}: {said}")


def _loss(event: RoundRecord) -> str:
    return "" if isnan(event.loss) else f"loss {event.loss:.3f}"  # under privacy it is nobody's to know


def _scored(event: Evaluated) -> str:
    metric, value = event.evaluation.headline
    return "" if isnan(value) else f"{metric} {metric_named(metric).text_with_unit(value)} after round {event.round}"
