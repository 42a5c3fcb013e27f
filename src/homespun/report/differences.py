"""How the first configuration differs from every other one, with intervals over users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homespun.evaluation.differences import FEW, MANY
from homespun.report.score_tables import CONTROLS, metric_of, title_of
from homespun.report.table_model import MISSING, Cell, Column, Table, finite, table

DIGITS = 2
WHO = {
    "test": "Known users, as trained",
    "adapted": "Known users, all own samples",
    "newcomers": "Withheld users, all own samples",
}


def difference_table(results: Mapping[str, Any]) -> Table | None:
    """Percent of perplexity more or less than each of the others; None where there is no perplexity."""
    rows = _others(results)
    shown = [who for who in WHO if any(one.get(who) for _, one in rows)]
    if not shown:
        return None
    ours = title_of(results, results["differences"]["ours"])
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


def unadapted_table(results: Mapping[str, Any]) -> Table | None:
    """All own samples against what the others are before anybody adapts them; None where nobody has tried."""
    found = (results.get("differences") or {}).get("unadapted") or {}
    rows = [
        [Cell(title_of(results, key)), *(_cell(one.get(who)) for who in ("adapted", "newcomers"))]
        for key, one in found.items()
        if any(one.values())
    ]
    if not rows:
        return None
    ours = title_of(results, results["differences"]["ours"])
    columns = [
        Column(f"{ours}, all own samples, against"),
        *(Column(f"{people} users, %", number=True) for people in ("Known", "Withheld")),
    ]
    note = (
        "The others here are as training left them: what a home makes of a shared prefix or head by adapting it is a "
        "person's own. Percent and intervals as above."
    )
    return table(columns, rows, caption="Difference to what the others are without adapting", note=note)


def own_samples_table(results: Mapping[str, Any]) -> Table | None:
    """What own samples change, in percent of perplexity; None where nobody has tried."""
    shown = [(who, few) for who in ("adapted", "newcomers") for few in FEW]
    rows = [
        [Cell(title_of(results, key)), *(_cell((one.get(who) or {}).get(few)) for who, few in shown)]
        for key, one in (results.get("from_samples") or {}).items()
        if any((one.get(who) or {}).get(few) for who, few in shown)
    ]
    if not rows:
        return None
    people = {"adapted": "Known users", "newcomers": "Withheld users"}
    columns = [
        Column("Configuration"),
        *(Column(f"{people[who]}, {MANY} against {few}, %", number=True) for who, few in shown),
    ]
    note = (
        f"By how many percent the perplexity with {MANY} own samples is higher (+) or lower (−, better) than with "
        "fewer, on the same test utterances; intervals as above."
    )
    return table(columns, rows, caption="What own samples change", note=note)


STATES = {"own": "Own", "prior": "A new user's", "another": "Another user's"}


def personal_table(results: Mapping[str, Any]) -> Table | None:
    """How much is personal; None where no configuration keeps anything private."""
    found, metric = results.get("personal") or {}, metric_of(results)
    if not found:
        return None
    rows = []
    for key, worse in found.items():
        summary = results["configurations"][key]["summary"]["personal"]
        reached = (Cell(metric.spread(summary[state]["value"])) for state in STATES)
        rows.append([Cell(title_of(results, key)), *reached, _cell(worse["prior"]), _cell(worse["another"])])
    columns = [
        Column("Configuration, with private parameters that are"),
        *(Column(title, number=True) for title in STATES.values()),
        Column("A new user's against own, %", number=True),
        Column("Another user's against own, %", number=True),
    ]
    note = (
        "Perplexity of participants as trained, on the test utterances: with their own private parameters, with those "
        "that a new user starts from, and with the next participant's. What the last two columns have above zero is "
        "personal; the rest anyone has. Percent and intervals as above."
    )
    return table(columns, rows, caption="How much is personal", note=note)


def difference_sentences(results: Mapping[str, Any]) -> list[str]:
    """Against whom, with all own samples, the interval excludes zero, and on which side."""
    found = results.get("differences") or {}
    ours = title_of(results, found.get("ours", ""))
    outcomes = {
        -1: f"below zero, better for {ours}, against",
        1: f"above zero, worse for {ours}, against",
        0: "on both sides of zero, so that neither is shown to be better, against",
    }
    said = []
    for who in ("adapted", "newcomers"):
        sides = [(f"“{title}”", _side(one.get(who))) for title, one in _others(results)]
        against = {side: ", ".join(title for title, found in sides if found == side) for side in outcomes}
        parts = [f"{words} {against[side]}" for side, words in outcomes.items() if against[side]]
        if parts:
            said.append(f"{WHO[who]}: the interval is {'; '.join(parts)}.")
    return said


def _others(results: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """What the first configuration is compared with, by title. Two may have the same."""
    found = results.get("differences") or {}
    return [
        *((title_of(results, key), one) for key, one in (found.get("configurations") or {}).items()),
        *((CONTROLS.get(name, name), one) for name, one in (found.get("controls") or {}).items() if any(one.values())),
    ]


def _side(found: Mapping[str, Any] | None) -> int | None:
    """-1: all of the interval is below zero, 1: above, 0: neither, as it reads; None: there is no interval."""
    low, high = (finite((found or {}).get(name)) for name in ("low", "high"))
    if low is None or high is None:
        return None
    return (round(low, DIGITS) > 0) - (round(high, DIGITS) < 0)


def _cell(found: Mapping[str, Any] | None) -> Cell:
    middle, low, high = (finite((found or {}).get(name)) for name in ("percent", "low", "high"))
    if middle is None:
        return Cell(MISSING)
    if low is None or high is None:
        return Cell(_signed(middle))
    return Cell(f"{_signed(middle)} [{_signed(low)}, {_signed(high)}]", best=bool(_side(found)))


def _signed(value: float) -> str:
    text = f"{value:+.{DIGITS}f}"
    return text.replace("-", "−") if round(value, DIGITS) else text[1:]
