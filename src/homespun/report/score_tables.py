"""How well it went: configurations and controls, users, and how alike users' vectors are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from homespun.report.table_model import (
    ACCURACY,
    F1,
    Cell,
    Column,
    Metric,
    Table,
    count,
    deviation,
    finite,
    mark_best,
    mean,
    metric_named,
    shorten,
    spread_text,
    table,
)

IN_CONTEXT = "Base model, own sentences in context"
CONTROLS = {
    "majority": "Majority label",
    "own_majority": "Own majority label",
    "untouched": "Base model untouched",
    "in_context_15": "Base model, 15 own sentences in context",
}


def first_of_several(results: Mapping[str, Any]) -> str:
    """Which run a figure is of, where it shows only one."""
    seeds = seeds_of(results)
    fold = ", fold 0" if folds_of(results) else ""
    return (f", seed {seeds[0]}" if len(seeds) > 1 else "") + fold


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


def control_name(name: str) -> str:
    count = name.removeprefix("in_context_")
    return CONTROLS.get(name) or f"Base model, {count} own sentence{'' if count == '1' else 's'} in context"


def control_title(name: str) -> str:
    """In a row among configurations."""
    return f"Control: {control_name(name)[0].lower()}{control_name(name)[1:]}"


def metric_of(results: Mapping[str, Any]) -> Metric:
    for found in summaries(results, "test").values():
        return metric_named(found.get("metric", "value"))
    return metric_named("value")


def user_metric_of(results: Mapping[str, Any]) -> Metric:
    """What a single user's value is: with labels always accuracy, because few users have an AUC of their own."""
    metric = metric_of(results)
    return ACCURACY if metric.percent else metric


def middle(found: Mapping[str, Any], column: str = "value") -> float | None:
    return finite((found.get(column) or {}).get("mean"))


def seeds_of(results: Mapping[str, Any]) -> list[Any]:
    """The seeds of the first configuration; all have the same. The folds of a seed count once."""
    for found in results.get("configurations", {}).values():
        return list(dict.fromkeys(run.get("seed") for run in found["runs"]))
    return []


def over_seeds(results: Mapping[str, Any]) -> str:
    seeds = len(seeds_of(results))
    return f"Mean ± standard deviation over {seeds} seeds." if seeds > 1 else "One seed, so no deviation."


def folds_of(results: Mapping[str, Any]) -> int:
    """In how many folds people were withheld in turn; 0 where the newcomers of a seed are one draw."""
    return int(finite((results.get("data") or {}).get("folds")) or 0)


def main_table(results: Mapping[str, Any]) -> Table:
    """Configurations and controls against what each reached."""
    metric, evaluated = metric_of(results), summaries(results, "eval")
    entries: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
        (title_of(results, key), found, evaluated[key]) for key, found in summaries(results, "test").items()
    ]
    entries += [(control_title(name), found, {}) for name, found in control_summaries(results).items()]
    shown = {
        f"Test {metric.title}": [test.get("value") for _, test, _ in entries],
        "User mean": [test.get("user_mean") for _, test, _ in entries],
        "Worst tenth": [test.get("user_worst_tenth") for _, test, _ in entries],
        f"Eval {metric.title}": [held.get("value") for *_, held in entries],
    }
    columns = [[Cell(title) for title, *_ in entries], *(_spread_cells(spreads, metric) for spreads in shown.values())]
    headings = [Column("Configuration"), *(Column(metric.column(title), number=True) for title in shown)]
    return table(headings, zip(*columns, strict=True), note=_main_note(results, metric))


def _spread_cells(spreads: Sequence[Mapping[str, Any] | None], metric: Metric) -> list[Cell]:
    """Means and deviations, the best mean marked."""
    means = [finite((spread or {}).get("mean")) for spread in spreads]
    return mark_best([Cell(metric.spread(spread)) for spread in spreads], means, metric)


def _main_note(results: Mapping[str, Any], metric: Metric) -> str:
    about = _ABOUT_PERPLEXITY if metric.lower_is_better else _ABOUT_VALUE.get(metric, _OVER_ALL).format(metric.title)
    about += "" if metric.lower_is_better else _ABOUT_LABELS
    return f"{over_seeds(results)} {about} The best value of a column is bold."


_OVER_ALL = "Test {} is over all test examples."
_ABOUT_VALUE = {
    F1: "Test {} is the mean over sub-populations, of each the mean over labels of what its members are tested on; a "
    "constant answer has a third."
}
_ABOUT_LABELS = (
    " User mean is the mean of every user's own accuracy; worst tenth is the mean over the tenth of users who fare "
    "worst. The controls do not look at an example: they always answer the label most frequent in everybody's "
    "training examples, or in the user's own."
)
_ABOUT_PERPLEXITY = (
    "Perplexity, lower is better: as unsure as a model that picks each token out of so many equally likely "
    "ones. The first three tokens of an utterance are given; all later ones of the test utterances count, "
    "each the same. User mean is the mean of every user's own perplexity; worst tenth is the mean over the "
    "tenth of users with the highest perplexity. The controls are the pre-trained model as it came, behind the start "
    "that is best on the evaluation part: alone, and with own sentences of a user before every utterance. Neither was "
    "trained on anyone's words."
)


QUANTILES = {"10th of 100": 0.1, "25th": 0.25, "Median": 0.5, "75th": 0.75, "90th": 0.9}


def user_values(results: Mapping[str, Any]) -> dict[str, list[float]]:
    """Every user's own test value, all seeds together, by configuration; the empty left out."""
    found = {
        key: joined_values([run.get("test") for run in one["runs"]])
        for key, one in results.get("configurations", {}).items()
    }
    return {key: values for key, values in found.items() if values}


def control_values(results: Mapping[str, Any]) -> dict[str, list[float]]:
    runs = (results.get("controls") or {}).get("runs") or []
    found = {name: joined_values([run.get(name) for run in runs]) for name in control_summaries(results)}
    return {name: values for name, values in found.items() if values}


def joined_values(evaluations: Sequence[Mapping[str, Any] | None]) -> list[float]:
    """Every user's own value of every evaluation."""
    values = (finite(value) for one in evaluations for value in (one or {}).get("user_values") or [])
    return [value for value in values if value is not None]


def users_table(results: Mapping[str, Any]) -> Table:
    """How the metric is spread over users."""
    metric = user_metric_of(results)
    entries = [(title_of(results, key), values) for key, values in user_values(results).items()]
    entries += [(control_title(key), values) for key, values in control_values(results).items()]
    rows = [
        [
            title,
            *(metric.text(float(value)) for value in np.quantile(values, list(QUANTILES.values()))),
            count(len(values)),
        ]
        for title, values in entries
    ]
    columns = [
        Column(metric.column(f"{metric.sentence_title} of users")),
        *(Column(name, number=True) for name in QUANTILES),
        Column("Users", number=True),
    ]
    order = "from best to worst served" if metric.lower_is_better else "from worst to best served"
    note = f"The 10th, 25th ... of every 100 users, {order}; all runs together."
    return table(columns, rows, caption=f"How {metric.title} is spread over users", note=note, folded=True)


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
