"""How the first configuration differs from every other one, with intervals over users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homespun.report.cells import MISSING, Cell, Column, Table, finite, table
from homespun.report.outcomes import CONTROLS, title_of

DIGITS = 2
WHO = {
    "test": "Known users, as trained",
    "adapted": "Known users, all own samples",
    "newcomers": "Withheld users, all own samples",
}


def difference_table(results: Mapping[str, Any]) -> Table | None:
    """Percent of perplexity more or less than each of the others; None where there is no perplexity."""
    found = results.get("differences") or {}
    rows = [(title_of(results, key), one) for key, one in (found.get("configurations") or {}).items()]
    rows += [(CONTROLS.get(name, name), one) for name, one in (found.get("controls") or {}).items()]
    shown = [who for who in WHO if any(one.get(who) for _, one in rows)]
    if not shown:
        return None
    ours = title_of(results, found["ours"])
    columns = [Column(f"{ours} against"), *(Column(f"{WHO[who]}, %", number=True) for who in shown)]
    cells = [[Cell(title), *(_cell(one.get(who)) for who in shown)] for title, one in rows]
    note = (
        f"By how many percent the perplexity with {ours} is higher (+) or lower (−, better), and in brackets the "
        "interval that holds 95 % of the differences when users are drawn again, with replacement. A "
        "user is drawn with all utterances of all runs. The interval says what other users might have given, "
        "not what another training would. Bold: it excludes zero."
    )
    if any(cell.text == MISSING for row in cells for cell in row):
        note += f" {MISSING}: not tried, or not scored on the same tokens."
    return table(columns, cells, caption="Difference to each configuration", note=note)


def _cell(found: Mapping[str, Any] | None) -> Cell:
    middle, low, high = (finite((found or {}).get(name)) for name in ("percent", "low", "high"))
    if middle is None:
        return Cell(MISSING)
    if low is None or high is None:
        return Cell(_signed(middle))
    excludes_zero = round(low, DIGITS) > 0 or round(high, DIGITS) < 0  # as it reads
    return Cell(f"{_signed(middle)} [{_signed(low)}, {_signed(high)}]", best=excludes_zero)


def _signed(value: float) -> str:
    text = f"{value:+.{DIGITS}f}"
    return text.replace("-", "−") if round(value, DIGITS) else text[1:]
