"""What own samples bring: to newcomers, and to participants who adapt at home."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from homespun.report.score_tables import (
    CONTROLS,
    IN_CONTEXT,
    control_summaries,
    folds_of,
    joined_values,
    metric_of,
    middle,
    over_seeds,
    summaries,
    title_of,
)
from homespun.report.table_model import MISSING, PERPLEXITY, Cell, Column, Table, mark_best, table

SAME = "same"  # for a model that own samples do not change
EIGHTY = "80 of 100 users"  # without the tenth that fares best and the one that fares worst


@dataclass(frozen=True)
class People:
    """Whose samples they are, under which names a summary has what they reach, and what to compare it with."""

    title: str
    part: str
    about: str
    reference: str
    samples: str = "Own samples"
    captioned: bool = True  # one of several tables


KNOWN = People(
    "Known users",
    part="adapted",
    about="of people who took part in training and adapt at home to so many new utterances of their own",
    reference=CONTROLS["untouched"],
)
WITHHELD = People(
    "Withheld users",
    part="newcomers",
    about="of people who never took part in training, personalized at home from so many utterances of their own",
    reference=CONTROLS["untouched"],
)
NEWCOMERS = People(
    "Newcomers",
    part="newcomers",
    about="of people who never took part in training, personalized at home from so many examples of their own",
    reference="Participants",
    samples="Own examples",
    captioned=False,
)


def people_of(results: Mapping[str, Any]) -> tuple[People, ...]:
    """For text, known and withheld users; for labels, newcomers."""
    return (KNOWN, WITHHELD) if metric_of(results) == PERPLEXITY else (NEWCOMERS,)


@dataclass(frozen=True)
class Line:
    """What one configuration reaches by number of own samples: a column of a table, a line of a figure."""

    key: str
    title: str
    found: Mapping[str, Mapping[str, Any]]

    def at(self, number: str) -> Mapping[str, Any]:
        return self.found.get(number) or {}


def lines(results: Mapping[str, Any], people: People) -> list[Line]:
    """Of every configuration that can serve these people."""
    reached = summaries(results, people.part)
    made = []
    for key, found in reached.items():
        title, summary = title_of(results, key), results["configurations"][key]["summary"]
        if people is KNOWN and not found and any(reached.values()):
            found = {"0": summary["test"]}  # nothing to adapt: they have what training gave them
        if found:
            made.append(Line(key, title, found))
    return made


def context_lines(results: Mapping[str, Any], people: People) -> list[Line]:
    """The control that needs no training: the base model with so many own sentences in its context."""
    if people is KNOWN:
        summary = (results.get("controls") or {}).get("summary") or {}
        found = {name.removeprefix("in_context_"): one for name, one in summary.items() if name.startswith("in_con")}
    else:
        first = next(iter(results["configurations"].values()))["summary"]
        found = dict(first.get("newcomers_in_context") or {})
    if not found:
        return []
    return [Line("", IN_CONTEXT, {"0": reference(results, people, next(iter(results["configurations"]))), **found})]


def counts(shown: Sequence[Line]) -> list[str]:
    """Numbers of own samples, ascending, `all` last."""
    found = {number for line in shown for number in line.found}
    return sorted(found, key=lambda text: (not text.isdigit(), int(text) if text.isdigit() else 0, text))


def unchanged(line: Line, numbers: Sequence[str]) -> bool:
    """Whether own samples make no difference: only zero of them was tried, of several."""
    return list(line.found) == ["0"] and list(numbers) != ["0"]


def reference(results: Mapping[str, Any], people: People, key: str) -> Mapping[str, Any]:
    """What a configuration is compared with: the pre-trained model, or those who did take part."""
    summary = results["configurations"][key]["summary"]
    if people is KNOWN:
        return control_summaries(results).get("untouched") or {}
    return summary.get("newcomers_untouched" if people is WITHHELD else "test") or {}


def sample_tables(results: Mapping[str, Any]) -> list[Table]:
    found = [sample_table(results, people) for people in people_of(results)]
    return [made for made in found if made is not None]


def sample_table(results: Mapping[str, Any], people: People) -> Table | None:
    """The number of own samples against what people reach with it."""
    shown, metric = lines(results, people), metric_of(results)
    if not shown:
        return None
    controls = context_lines(results, people)
    rows = [[Cell(number), *_row(results, [*shown, *controls], number)] for number in counts(shown)]
    compared = [reference(results, people, line.key or shown[0].key).get("value") for line in (*shown, *controls)]
    rows.append([Cell(people.reference), *(Cell(metric.spread(value)) for value in compared)])
    named = [line.title for line in (*shown, *controls)]
    columns = [Column(people.samples), *(Column(metric.column(title), number=True) for title in named)]
    caption = people.title if people.captioned else ""
    return table(columns, rows, caption=caption, note=_note(results, people, shown))


def configuration_table(results: Mapping[str, Any], people: People) -> Table | None:
    """The same the other way round, for many configurations: a row for each, the base model's first."""
    shown = lines(results, people)
    if not shown:
        return None
    numbers = counts(shown)
    shown = [_untouched(results, people, shown[0].key), *context_lines(results, people), *shown]
    columns = [_row(results, shown, number) for number in numbers]
    rows = zip([Cell(line.title) for line in shown], *columns, strict=True)
    return table([Column("Configuration"), *(Column(number, number=True) for number in numbers)], rows)


def _untouched(results: Mapping[str, Any], people: People, key: str) -> Line:
    return Line("", people.reference, {"0": reference(results, people, key)})


def served_table(results: Mapping[str, Any], people: People) -> Table | None:
    """How users fare one by one with all samples of their own; the base model untouched comes first."""
    shown, metric = lines(results, people), metric_of(results)
    if not shown:
        return None
    most, base = counts(shown)[-1], _untouched(results, people, shown[0].key)
    values = [_base_values(results, people, shown[0].key), *(_values_at(results, people, line.key) for line in shown)]
    found = [line.at(most) or line.at("0") for line in (base, *shown)]

    def cells(column: str) -> list[Cell]:
        texts = [Cell(metric.spread(one.get(column))) for one in found]
        return mark_best(texts, [middle(one, column) for one in found], metric)

    between = [" to ".join(map(metric.text, np.quantile(some, [0.1, 0.9]))) if some else MISSING for some in values]
    names = [line.title for line in (base, *shown)]
    columns = [Column("Configuration"), *(Column(name, number=True) for name in ("User mean", EIGHTY, "Worst tenth"))]
    return table(columns, zip(names, cells("user_mean"), between, cells("user_worst_tenth"), strict=True))


def _values_at(results: Mapping[str, Any], people: People, key: str) -> list[float]:
    """Every user's own value with all samples, all runs together; where samples change nothing, the one they have."""
    runs = results["configurations"][key]["runs"]
    each = [run.get(people.part) or {} for run in runs]
    return joined_values([one.get("all") or one.get("0") or run["test"] for one, run in zip(each, runs, strict=True)])


def _base_values(results: Mapping[str, Any], people: People, key: str) -> list[float]:
    if people is KNOWN:
        return joined_values([run.get("untouched") for run in (results.get("controls") or {}).get("runs") or []])
    return joined_values([run.get("newcomers_untouched") for run in results["configurations"][key]["runs"]])


def _row(results: Mapping[str, Any], shown: Sequence[Line], number: str) -> list[Cell]:
    metric, numbers = metric_of(results), counts(shown)

    def cell(line: Line) -> Cell:
        if number in line.found:
            return Cell(metric.spread(line.at(number).get("value")))
        return Cell(SAME if unchanged(line, numbers) else MISSING)

    means = [middle(line.at("0" if unchanged(line, numbers) else number)) for line in shown]
    return mark_best([cell(line) for line in shown], means, metric)


def _note(results: Mapping[str, Any], people: People, shown: Sequence[Line]) -> str:
    served = {line.key for line in shown}
    lacking = [title_of(results, key) for key in results.get("configurations", {}) if key not in served]
    folds, same = folds_of(results), any(unchanged(line, counts(shown)) for line in shown)
    parts = [
        f"Test {metric_of(results).title} {people.about}; the shared model does not change and nothing is sent. "
        f"What is tested is the same in every row{_but_the_last(people)}. The best value of a row is bold.",
        f"Each of {folds} folds withholds others; their newcomers count together."
        if folds and folds > 1 and people is not KNOWN
        else "",
        _about_context(results, people),
        f"“{SAME.capitalize()}”: there is nothing to personalize, so own samples change nothing." if same else "",
        f"Not tried with newcomers: {', '.join(lacking)}." if lacking else "",
        over_seeds(results),
    ]
    return " ".join(part for part in parts if part)


def _about_context(results: Mapping[str, Any], people: People) -> str:
    if not context_lines(results, people):
        return ""
    return (
        f"“{IN_CONTEXT}”: a control without any training. The same sentences that the others adapt to stand before "
        "every utterance, as many of the last ones as the model can read."
    )


def _but_the_last(people: People) -> str:
    return " but the last, which is the result of those who did take part" if people is NEWCOMERS else ""
