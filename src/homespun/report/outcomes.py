"""How well it went: configurations and controls, newcomers, and how alike users' vectors are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from homespun.report.cells import (
    METRICS,
    MISSING,
    Cell,
    Column,
    Table,
    count,
    deviation,
    finite,
    mark_best,
    mean,
    percent,
    percent_spread,
    shorten,
    spread_text,
    table,
)

CONTROLS = {"majority": "Majority label", "own_majority": "Own majority label", "untouched": "Base model untouched"}
SAME = "same"  # for a model that own examples do not change


def title_of(results: Mapping[str, Any], key: str) -> str:
    """A configuration's title; its key where it has none."""
    configuration = results.get("configurations", {}).get(key) or {}
    return shorten(configuration.get("title") or key)


def summaries(results: Mapping[str, Any], part: str) -> dict[str, Mapping[str, Any]]:
    """The summary of every configuration on one part of the data, by key."""
    return {key: found["summary"].get(part) or {} for key, found in results.get("configurations", {}).items()}


def control_summaries(results: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    found = (results.get("controls") or {}).get("summary") or {}
    return {name: found[name] for name in CONTROLS if name in found}


def metric_of(results: Mapping[str, Any]) -> str:
    for found in summaries(results, "test").values():
        return METRICS.get(found.get("metric", ""), shorten(found.get("metric", "value")))
    return "value"


def middle(found: Mapping[str, Any], column: str = "value") -> float | None:
    return finite((found.get(column) or {}).get("mean"))


def seeds_of(results: Mapping[str, Any]) -> list[Any]:
    """The seeds of the first configuration; all have the same."""
    for found in results.get("configurations", {}).values():
        return [run.get("seed") for run in found["runs"]]
    return []


def main_table(results: Mapping[str, Any]) -> Table:
    """Configurations and controls against what each reached."""
    evaluated, tested = summaries(results, "eval"), summaries(results, "test")
    controls = control_summaries(results)
    entries: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
        (title_of(results, key), found, evaluated[key]) for key, found in tested.items()
    ]
    entries += [(f"Control: {CONTROLS[name].lower()}", found, {}) for name, found in controls.items()]
    rows: list[list[Cell]] = []
    values: list[list[float | None]] = []
    for title, test, held in entries:
        spreads = [test.get("value"), test.get("user_mean"), test.get("user_worst_tenth"), held.get("value")]
        rows.append([Cell(title), *(Cell(percent_spread(spread)) for spread in spreads)])
        values.append([finite((spread or {}).get("mean")) for spread in spreads])
    for column in range(4):
        rows = mark_best(rows, column=column + 1, values=[row[column] for row in values])
    metric = metric_of(results)
    columns = [
        Column("Configuration"),
        Column(f"Test {metric}, %", number=True),
        Column("User mean, %", number=True),
        Column("Worst tenth, %", number=True),
        Column(f"Eval {metric}, %", number=True),
    ]
    return table(columns, rows, note=_main_note(results, metric))


def _main_note(results: Mapping[str, Any], metric: str) -> str:
    seeds = seeds_of(results)
    over = f"Mean ± standard deviation over {len(seeds)} seeds. " if len(seeds) > 1 else "One seed, so no deviation. "
    return over + (
        f"Test {metric} is over all test examples. User mean is the mean of every user's own accuracy; worst "
        "tenth is the mean over the tenth of users who fare worst. The controls do not read the text: they "
        "always answer the label most frequent in everybody's training examples, or in the user's own. "
        "The best value of a column is bold."
    )


QUANTILES = {"10th of 100": 0.1, "25th": 0.25, "Median": 0.5, "75th": 0.75, "90th": 0.9}


def user_accuracies(results: Mapping[str, Any]) -> dict[str, list[float]]:
    """Every user's own test accuracy, all seeds together, by configuration or control; the empty left out."""
    found = {
        key: _accuracies([run.get("test") for run in one["runs"]])
        for key, one in results.get("configurations", {}).items()
    }
    return {key: values for key, values in found.items() if values}


def control_accuracies(results: Mapping[str, Any]) -> dict[str, list[float]]:
    runs = (results.get("controls") or {}).get("runs") or []
    found = {name: _accuracies([run.get(name) for run in runs]) for name in control_summaries(results)}
    return {name: values for name, values in found.items() if values}


def _accuracies(evaluations: Sequence[Mapping[str, Any] | None]) -> list[float]:
    values = (finite(value) for one in evaluations for value in (one or {}).get("user_values") or [])
    return [value for value in values if value is not None]


def users_table(results: Mapping[str, Any]) -> Table:
    """How accuracy is spread over users."""
    entries = [(title_of(results, key), values) for key, values in user_accuracies(results).items()]
    entries += [(f"Control: {CONTROLS[key].lower()}", values) for key, values in control_accuracies(results).items()]
    rows = [
        [
            title,
            *(percent(float(value)) for value in np.quantile(values, list(QUANTILES.values()))),
            count(len(values)),
        ]
        for title, values in entries
    ]
    columns = [
        Column("Accuracy of users, %"),
        *(Column(name, number=True) for name in QUANTILES),
        Column("Users", number=True),
    ]
    note = "The 10th, 25th ... of every 100 users, from worst to best served; all seeds together."
    return table(columns, rows, caption="How accuracy is spread over users", note=note, folded=True)


def newcomer_counts(results: Mapping[str, Any]) -> list[str]:
    """Numbers of own examples, ascending, `all` last."""
    found = {number for summary in summaries(results, "newcomers").values() for number in summary}
    return sorted(found, key=lambda text: (not text.isdigit(), int(text) if text.isdigit() else 0, text))


def newcomer_summaries(results: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Configurations that can serve somebody who never took part."""
    return {key: found for key, found in summaries(results, "newcomers").items() if found}


def unchanged_by_examples(results: Mapping[str, Any], key: str) -> bool:
    """Whether a newcomer's own examples make no difference: only zero of them was tried, of several."""
    return list(newcomer_summaries(results)[key]) == ["0"] and newcomer_counts(results) != ["0"]


def newcomers_table(results: Mapping[str, Any]) -> Table | None:
    """The number of a newcomer's own examples against what they reach with it."""
    able = newcomer_summaries(results)
    if not able:
        return None
    tested = summaries(results, "test")

    def cell(key: str, number: str) -> str:
        if number in able[key]:
            return percent_spread(able[key][number].get("value"))
        return SAME if unchanged_by_examples(results, key) else MISSING

    rows = [[number, *(cell(key, number) for key in able)] for number in newcomer_counts(results)]
    rows.append(["Participants", *(percent_spread(tested[key].get("value")) for key in able)])
    columns = [Column("Own examples"), *(Column(f"{title_of(results, key)}, %", number=True) for key in able)]
    lacking = [title_of(results, key) for key in tested if key not in able]
    return table(columns, rows, note=_newcomers_note(results, lacking))


def _newcomers_note(results: Mapping[str, Any], lacking: Sequence[str]) -> str:
    note = (
        f"Test {metric_of(results)} of people who never took part in training, personalized at home from so "
        "many examples of their own; the shared model does not change and nothing is sent. The test examples "
        "are the same in every row but the last, which is the result of those who did take part."
    )
    if any(unchanged_by_examples(results, key) for key in newcomer_summaries(results)):
        note += f" “{SAME.capitalize()}”: there is nothing to personalize, so own examples change nothing."
    if lacking:
        note += f" Not tried with newcomers: {', '.join(lacking)}."
    return note


def similarity_table(results: Mapping[str, Any]) -> Table | None:
    """How alike the users' vectors of two configurations are, over seeds."""
    found = similarity_means(results)
    if not found:
        return None
    rows = [
        [title_of(results, left), title_of(results, right), spread_text(middle, around, digits=3), str(seeds)]
        for (left, right), (middle, around, seeds) in found.items()
    ]
    columns = [
        Column("Vectors of"),
        Column("and of"),
        Column("Rank correlation", number=True),
        Column("Seeds", number=True),
    ]
    note = (
        "Spearman's correlation of the distances between all pairs of users: 1 means the same people are "
        "near and far in both, 0 that the two have nothing in common. Rotating all vectors, or scaling them "
        "by one factor, does not change it."
    )
    return table(columns, rows, caption="How alike the vectors of two configurations are", note=note)


def similarity_means(
    results: Mapping[str, Any],
) -> dict[tuple[str, str], tuple[float | None, float | None, int]]:
    """Mean, deviation and number of seeds for every pair of configurations."""
    pairs: dict[tuple[str, str], list[float | None]] = {}
    for entry in results.get("similarity") or []:
        pairs.setdefault((entry["left"], entry["right"]), []).append(finite(entry.get("correlation")))
    found = {}
    for pair, values in pairs.items():
        known = [value for value in values if value is not None]
        found[pair] = (mean(values), deviation(known) if len(known) == len(values) else None, len(values))
    return found
