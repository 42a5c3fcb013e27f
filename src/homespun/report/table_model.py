"""Tables as data, and how numbers are formatted in a cell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

MISSING = "–"
LONGEST = 60  # characters of a text from the data

PlainTable: TypeAlias = tuple[str, tuple[str, ...], list[tuple[str, ...]]]  # title, columns, rows


@dataclass(frozen=True)
class Metric:
    """A metric: its name, how a value is formatted, and which direction is better."""

    title: str
    percent: bool = True  # a share, shown in percent; otherwise shown unscaled
    lower_is_better: bool = False
    digits: int = 2

    @property
    def unit(self) -> str:
        return " %" if self.percent else ""

    @property
    def sentence_title(self) -> str:
        """The name at the start of a sentence; an abbreviation keeps its capitals."""
        return self.title if self.title.isupper() else self.title.capitalize()

    def heading(self, title: str) -> str:
        """The heading of a column or an axis of this metric."""
        return f"{title}, %" if self.percent else title

    def scaled(self, value: float) -> float:
        return 100 * value if self.percent else value

    def text(self, value: Any) -> str:
        number = finite(value)
        return MISSING if number is None else f"{self.scaled(number):.{self.digits}f}"

    def text_with_unit(self, value: Any) -> str:
        """The value with its unit, for a sentence."""
        return f"{self.text(value)}{self.unit}"

    def mean_and_std(self, spread: Mapping[str, Any] | None) -> str:
        """Mean ± standard deviation over seeds; for one seed the mean alone."""
        average, std = finite((spread or {}).get("mean")), finite((spread or {}).get("std"))
        return self.text(average) if average is None or std is None else f"{self.text(average)} ± {self.text(std)}"

    def sort_key(self, value: float) -> float:
        """A sort key that puts the best value first."""
        return value if self.lower_is_better else -value


ACCURACY = Metric("accuracy")
PERPLEXITY = Metric("perplexity", percent=False, lower_is_better=True)
F1 = Metric("F1")
AUC = Metric("AUC")
METRICS = {"accuracy": ACCURACY, "auc": AUC, "f1": F1, "perplexity": PERPLEXITY}


def metric_named(name: Any, *, scoring: Mapping[str, Any] | None = None) -> Metric:
    """A metric of results.json by its name; one that is not built in, as its scoring says or else as a share."""
    if str(name) in METRICS:
        return METRICS[str(name)]
    about = scoring or {}
    return Metric(shorten(name), about.get("percent", True), about.get("lower_is_better", False))


@dataclass(frozen=True)
class Column:
    title: str
    number: bool = False


@dataclass(frozen=True)
class Cell:
    text: str
    best: bool = False


@dataclass(frozen=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    note: str = ""
    collapsed: bool = False  # in the page: long, and of interest to few


def make_table(
    columns: Iterable[Column],
    rows: Iterable[Iterable[str | Cell]],
    *,
    caption: str = "",
    note: str = "",
    collapsed: bool = False,
) -> Table:
    made = tuple(tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row) for row in rows)
    return Table(tuple(columns), made, caption=caption, note=note, collapsed=collapsed)


def finite(value: Any) -> float | None:
    """The number, or None if it is not finite: results.json has null where a value could not be computed."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def mean(values: Iterable[Any]) -> float | None:
    """The mean, or None if there are no values or one of them is not a finite number."""
    numbers = [finite(value) for value in values]
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if known and len(known) == len(numbers) else None


def sample_std(values: Sequence[float]) -> float | None:
    """Sample standard deviation; None for a single value."""
    if len(values) < 2:
        return None
    average = sum(values) / len(values)
    return math.sqrt(sum((value - average) ** 2 for value in values) / (len(values) - 1))


def percent_text(value: Any) -> str:
    number = finite(value)
    return MISSING if number is None else f"{100 * number:.2f}"


def mean_std_text(average: float | None, std: float | None, *, digits: int) -> str:
    if average is None:
        return MISSING
    return f"{average:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")


def count_text(value: Any) -> str:
    number = finite(value)
    return MISSING if number is None else f"{round(number):,}"


def byte_text(value: Any) -> str:
    """A size with its unit, in powers of 1000."""
    number = finite(value)
    if number is None:
        return MISSING
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 999.5 or unit == "GB":
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "B" or number >= 99.95 else f"{number:.1f} {unit}"


def shorten(text: Any, longest: int = LONGEST) -> str:
    """One line of at most `longest` characters: labels and names come from the data and can be anything."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in str(text)).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def mark_best(cells: Sequence[Cell], values: Sequence[float | None], metric: Metric) -> list[Cell]:
    """Mark the best cells of a row or column, unless all are equal.

    Values are compared as they are displayed: a difference that is rounded away makes neither better.
    """
    known = [value for value in values if value is not None]
    if len({metric.text(value) for value in known}) < 2:
        return list(cells)
    best = metric.text(min(known, key=metric.sort_key))
    return [replace(cell, best=metric.text(value) == best) for cell, value in zip(cells, values, strict=True)]
