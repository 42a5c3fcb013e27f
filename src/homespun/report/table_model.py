"""Tables as data, and how a number reads in a cell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

MISSING = "–"
LONGEST = 60  # characters of a text that comes from the data


@dataclass(frozen=True)
class Metric:
    """What a value is: its name, how it is written, and which way is better."""

    title: str
    percent: bool = True  # a share, shown in percent; otherwise shown as it is
    lower_is_better: bool = False
    digits: int = 2

    @property
    def unit(self) -> str:
        return " %" if self.percent else ""

    @property
    def sentence_title(self) -> str:
        """The name where a sentence begins; an abbreviation stays as it is."""
        return self.title if self.title.isupper() else self.title.capitalize()

    def column(self, title: str) -> str:
        """The heading of a column or an axis with such values."""
        return f"{title}, %" if self.percent else title

    def shown(self, value: float) -> float:
        return 100 * value if self.percent else value

    def text(self, value: Any) -> str:
        number = finite(value)
        return MISSING if number is None else f"{self.shown(number):.{self.digits}f}"

    def said(self, value: Any) -> str:
        """The value inside a sentence, with its unit."""
        return f"{self.text(value)}{self.unit}"

    def spread(self, spread: Mapping[str, Any] | None) -> str:
        """Mean ± standard deviation over seeds; with one seed the mean alone."""
        middle, around = finite((spread or {}).get("mean")), finite((spread or {}).get("std"))
        return self.text(middle) if middle is None or around is None else f"{self.text(middle)} ± {self.text(around)}"

    def best_first(self, value: float) -> float:
        """A key to sort by."""
        return value if self.lower_is_better else -value


ACCURACY = Metric("accuracy")
PERPLEXITY = Metric("perplexity", percent=False, lower_is_better=True)
F1 = Metric("F1")
METRICS = {"accuracy": ACCURACY, "auc": Metric("AUC"), "f1": F1, "perplexity": PERPLEXITY}


def metric_named(name: Any) -> Metric:
    """A metric of results.json; one that nobody described is a share."""
    return METRICS.get(str(name)) or Metric(shorten(name))


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
    folded: bool = False  # long, and of interest to few


def table(
    columns: Iterable[Column],
    rows: Iterable[Iterable[str | Cell]],
    *,
    caption: str = "",
    note: str = "",
    folded: bool = False,
) -> Table:
    made = tuple(tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row) for row in rows)
    return Table(tuple(columns), made, caption=caption, note=note, folded=folded)


def finite(value: Any) -> float | None:
    """A number, or None for what is not one: results.json has null where a value could not be computed."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def mean(values: Iterable[Any]) -> float | None:
    """The mean, or None if there is nothing or anything in it is not a number."""
    numbers = [finite(value) for value in values]
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if known and len(known) == len(numbers) else None


def deviation(values: Sequence[float]) -> float | None:
    """Sample standard deviation; None for a single value."""
    if len(values) < 2:
        return None
    middle = sum(values) / len(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))


def percent(value: Any) -> str:
    number = finite(value)
    return MISSING if number is None else f"{100 * number:.2f}"


def spread_text(middle: float | None, around: float | None, *, digits: int) -> str:
    if middle is None:
        return MISSING
    return f"{middle:.{digits}f}" + ("" if around is None else f" ± {around:.{digits}f}")


def count(value: Any) -> str:
    number = finite(value)
    return MISSING if number is None else f"{round(number):,}"


def byte_text(value: Any) -> str:
    """Bytes as people say them, in powers of 1000."""
    number = finite(value)
    if number is None:
        return MISSING
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 999.5 or unit == "GB":
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "B" or number >= 99.95 else f"{number:.1f} {unit}"


def shorten(text: Any, longest: int = LONGEST) -> str:
    """One line of at most so many characters: labels and names are data and can be anything."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in str(text)).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def mark_best(cells: Sequence[Cell], values: Sequence[float | None], metric: Metric) -> list[Cell]:
    """Mark the best of several values beside or below each other, unless all are the same.

    Values that read the same are the same: a difference nobody sees makes none of them better.
    """
    known = [value for value in values if value is not None]
    if len({metric.text(value) for value in known}) < 2:
        return list(cells)
    best = metric.text(min(known, key=metric.best_first))
    return [replace(cell, best=metric.text(value) == best) for cell, value in zip(cells, values, strict=True)]
