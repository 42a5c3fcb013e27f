"""Differences between the first configuration and every other one, with intervals over users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homespun.evaluation.differences import FEW, most_samples
from homespun.report.score_tables import CONTROLS, metric_of, title_of
from homespun.report.table_model import MISSING, Cell, Column, Table, finite, make_table

DIGITS = 2
TITLES = {
    "test": "Known users, as trained",
    "adapted": "Known users, all own samples",
    "newcomers": "Withheld users, all own samples",
}


def difference_table(results: Mapping[str, Any]) -> Table | None:
    """Relative difference in perplexity from each of the others; None if the metric is not perplexity."""
    rows = _others(results)
    shown = [part for part in TITLES if any(one.get(part) for _, one in rows)]
    if not shown:
        return None
    ours = title_of(results, results["differences"]["ours"])
    columns = [Column(f"{ours} against"), *(Column(f"{TITLES[part]}, %", number=True) for part in shown)]
    cells = [[Cell(title), *(_cell(one.get(part)) for part in shown)] for title, one in rows]
    note = (
        f"How much higher (+) or lower (−, better) the perplexity of {ours} is, in percent, and in brackets the 95 % "
        "bootstrap interval over users: users are drawn with replacement, each with all utterances of all runs. The "
        "interval reflects the choice of users, not the randomness of training. Bold: it excludes zero."
    )
    if any(cell.text == MISSING for row in cells for cell in row):
        note += f" {MISSING}: not evaluated, or not scored on the same tokens."
    return make_table(columns, cells, caption="Difference from each configuration", note=note)


def unadapted_table(results: Mapping[str, Any]) -> Table | None:
    """All own samples against the others without adaptation; None if no configuration was evaluated this way."""
    found = (results.get("differences") or {}).get("unadapted") or {}
    rows = [
        [Cell(title_of(results, key)), *(_cell(one.get(part)) for part in ("adapted", "newcomers"))]
        for key, one in found.items()
        if any(one.values())
    ]
    if not rows:
        return None
    ours = title_of(results, results["differences"]["ours"])
    columns = [
        Column(f"{ours}, all own samples, against"),
        *(Column(f"{which} users, %", number=True) for which in ("Known", "Withheld")),
    ]
    note = (
        "The others are evaluated as trained: a shared prefix or head that a client has adapted belongs to one user. "
        "Percent and intervals as above."
    )
    return make_table(columns, rows, caption="Difference from the others without adaptation", note=note)


def own_samples_table(results: Mapping[str, Any]) -> Table | None:
    """The effect of own samples, in percent of perplexity; None if no configuration was evaluated this way."""
    shown = [(part, few) for part in ("adapted", "newcomers") for few in FEW]
    rows = [
        [Cell(title_of(results, key)), *(_cell((one.get(part) or {}).get(few)) for part, few in shown)]
        for key, one in (results.get("from_samples") or {}).items()
        if any((one.get(part) or {}).get(few) for part, few in shown)
    ]
    if not rows:
        return None
    titles = {"adapted": "Known users", "newcomers": "Withheld users"}
    most = most_samples([one["summary"] for one in results["configurations"].values()])
    columns = [
        Column("Configuration"),
        *(Column(f"{titles[part]}, {most} against {few}, %", number=True) for part, few in shown),
    ]
    note = (
        f"How much higher (+) or lower (−, better) the perplexity with {most} own samples is than with fewer, in "
        "percent, on the same test utterances; intervals as above."
    )
    return make_table(columns, rows, caption="Effect of own samples", note=note)


STATES = {"own": "Own", "prior": "New user's", "another": "Another user's"}


def personal_table(results: Mapping[str, Any]) -> Table | None:
    """Scores with the private parameters of other users; None if no configuration has private parameters."""
    found, metric = results.get("personal") or {}, metric_of(results)
    if not found:
        return None
    rows = []
    for key, worse in found.items():
        summary = results["configurations"][key]["summary"]["personal"]
        reached = (Cell(metric.mean_and_std(summary[state]["value"])) for state in STATES)
        rows.append([Cell(title_of(results, key)), *reached, _cell(worse["prior"]), _cell(worse["another"])])
    columns = [
        Column("Configuration, with private parameters:"),
        *(Column(title, number=True) for title in STATES.values()),
        Column("New user's against own, %", number=True),
        Column("Another user's against own, %", number=True),
    ]
    note = (
        "Perplexity of participants as trained, on the test utterances: with their own private parameters, with those "
        "that a new user starts from, and with the next participant's. Values above zero in the last two columns "
        "measure what the user's own parameters contribute. Percent and intervals as above."
    )
    return make_table(columns, rows, caption="Contribution of private parameters", note=note)


def difference_sentences(results: Mapping[str, Any]) -> list[str]:
    """With all own samples: which configurations are worse, better or not distinguishable, by their intervals."""
    found = results.get("differences") or {}
    ours = title_of(results, found.get("ours", ""))
    verdicts = {
        -1: "is better than {} (interval below zero)",
        1: "is worse than {} (interval above zero)",
        0: "is not distinguishable from {} (interval includes zero)",
    }
    sentences = []
    for part in ("adapted", "newcomers"):
        sides = [(f"“{title}”", _side(one.get(part))) for title, one in _others(results)]
        others = {side: ", ".join(title for title, found in sides if found == side) for side in verdicts}
        parts = [verdict.format(others[side]) for side, verdict in verdicts.items() if others[side]]
        if parts:
            sentences.append(f"{TITLES[part]}: {ours} {'; '.join(parts)}.")
    return sentences


def _others(results: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """What the first configuration is compared with: titles, of which two may be equal, and differences."""
    found = results.get("differences") or {}
    return [
        *((title_of(results, key), one) for key, one in (found.get("configurations") or {}).items()),
        *((CONTROLS.get(name, name), one) for name, one in (found.get("controls") or {}).items() if any(one.values())),
    ]


def _side(found: Mapping[str, Any] | None) -> int | None:
    """-1: the interval, rounded as displayed, is below zero; 1: above; 0: neither; None: there is no interval."""
    low, high = (finite((found or {}).get(name)) for name in ("low", "high"))
    return None if low is None or high is None else _side_of(low, high, DIGITS)


def _side_of(low: float, high: float, digits: int) -> int:
    return (round(low, digits) > 0) - (round(high, digits) < 0)


def _cell(found: Mapping[str, Any] | None) -> Cell:
    percent, low, high = (finite((found or {}).get(name)) for name in ("percent", "low", "high"))
    return interval_cell(percent, low, high)


def interval_cell(value: float | None, low: float | None, high: float | None, *, digits: int = DIGITS) -> Cell:
    """A difference with its interval, bold if the interval, rounded as displayed, excludes zero."""
    if value is None:
        return Cell(MISSING)
    if low is None or high is None:
        return Cell(_signed(value, digits))
    interval = f"[{_signed(low, digits)}, {_signed(high, digits)}]"
    return Cell(f"{_signed(value, digits)} {interval}", best=bool(_side_of(low, high, digits)))


def _signed(value: float, digits: int) -> str:
    text = f"{value:+.{digits}f}"
    return text.replace("-", "−") if round(value, digits) else text[1:]
