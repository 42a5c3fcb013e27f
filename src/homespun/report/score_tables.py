"""Scores of configurations and controls, their distribution over users, and the similarity of users' vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from homespun.report.table_model import (
    ACCURACY,
    AUC,
    F1,
    PERPLEXITY,
    Cell,
    Column,
    Metric,
    Table,
    count_text,
    finite,
    make_table,
    mark_best,
    mean,
    mean_std_text,
    metric_named,
    sample_std,
    shorten,
)

IN_CONTEXT = "Base model, own sentences in context"
CONTROLS = {
    "majority": "Majority label",
    "own_majority": "Own majority label",
    "untouched": "Base model",
    "in_context_15": "Base model, 15 own sentences in context",
}


def shown_run_suffix(results: Mapping[str, Any]) -> str:
    """Which run a figure shows, if it shows one of several."""
    seeds = seeds_of(results)
    fold = ", fold 0" if folds_of(results) else ""
    return (f", seed {seeds[0]}" if len(seeds) > 1 else "") + fold


def title_of(results: Mapping[str, Any], key: str) -> str:
    """A configuration's title, or its key if it has no title."""
    configuration = results.get("configurations", {}).get(key) or {}
    return shorten(configuration.get("title") or key)


def summaries(results: Mapping[str, Any], part: str) -> dict[str, Mapping[str, Any]]:
    """Each configuration's summary of one part of the data, by key."""
    return {key: found["summary"].get(part) or {} for key, found in results.get("configurations", {}).items()}


def control_summaries(results: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    found = (results.get("controls") or {}).get("summary") or {}
    return {name: found[name] for name in CONTROLS if name in found}


def control_name(name: str) -> str:
    count = name.removeprefix("in_context_")
    return CONTROLS.get(name) or f"Base model, {count} own sentence{'' if count == '1' else 's'} in context"


def control_title(name: str) -> str:
    """The title of a control in a row among configurations."""
    return f"Control: {control_name(name)[0].lower()}{control_name(name)[1:]}"


def scoring_of(results: Mapping[str, Any]) -> Mapping[str, Any]:
    """How the method's scoring wants to be shown; results made before 0.2 do not say."""
    runs = (run for one in results["configurations"].values() for run in one["runs"])
    return next((run["scoring"] for run in runs if run.get("scoring")), {})


def metric_of(results: Mapping[str, Any]) -> Metric:
    for found in summaries(results, "test").values():
        return metric_named(found.get("metric", "value"), scoring=scoring_of(results))
    return metric_named("value")


def user_metric_of(results: Mapping[str, Any]) -> Metric:
    """The metric of a single user: with labels always accuracy, because the AUC of few single users is defined."""
    metric = metric_of(results)
    return ACCURACY if metric in (AUC, F1) else metric


def summary_mean(found: Mapping[str, Any], column: str = "value") -> float | None:
    return finite((found.get(column) or {}).get("mean"))


def seeds_of(results: Mapping[str, Any]) -> list[Any]:
    """The seeds of the first configuration; all configurations share them. The folds of a seed count once."""
    for found in results.get("configurations", {}).values():
        return list(dict.fromkeys(run.get("seed") for run in found["runs"]))
    return []


def seed_note(results: Mapping[str, Any]) -> str:
    seeds = len(seeds_of(results))
    return f"Mean ± standard deviation over {seeds} seeds." if seeds > 1 else "One seed, so no standard deviation."


def folds_of(results: Mapping[str, Any]) -> int:
    """The number of folds in which users were withheld in turn; 0 if the newcomers of a seed are one draw."""
    return int(finite((results.get("data") or {}).get("folds")) or 0)


def main_table(results: Mapping[str, Any]) -> Table:
    """The scores of configurations and controls."""
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
    headings = [Column("Configuration"), *(Column(metric.heading(title), number=True) for title in shown)]
    return make_table(headings, zip(*columns, strict=True), note=_main_note(results, metric))


def _spread_cells(spreads: Sequence[Mapping[str, Any] | None], metric: Metric) -> list[Cell]:
    """Means and standard deviations, with the best mean marked."""
    means = [finite((spread or {}).get("mean")) for spread in spreads]
    return mark_best([Cell(metric.mean_and_std(spread)) for spread in spreads], means, metric)


def _main_note(results: Mapping[str, Any], metric: Metric) -> str:
    about = _ABOUT_VALUE.get(metric, _OVER_ALL).format(metric.title)
    runs = [run for one in results.get("configurations", {}).values() for run in one["runs"]]
    if any((run.get("test") or {}).get("subwords") for run in runs):
        about = _ABOUT_SUBWORDS
    elif any(run.get("replies") for run in runs):
        about = _ABOUT_REPLIES
    about += _ABOUT_LABELS if metric in (ACCURACY, AUC, F1) else ""
    return f"{seed_note(results)} {about} The best value of a column is bold."


_OVER_ALL = "Test {} is computed over all test examples."
_PERPLEXITY = (
    "Perplexity, lower is better: a model with perplexity p is as uncertain as one that picks each token from p "
    "equally likely ones. "
)
_USERS = (
    " count equally. User mean is the mean of each user's perplexity; worst tenth is the mean over the tenth of users "
    "with the highest perplexity. "
)
_ABOUT_REPLIES = (
    f"{_PERPLEXITY}Given the prompt, all words of the test replies and their ends{_USERS}The control is the "
    "pre-trained reply model without training on these conversations."
)
_ABOUT_SUBWORDS = (
    f"{_PERPLEXITY}Tokens are words, also of models that write parts of words, whose losses are added up: given the "
    f"prompt, all words of the test replies and their ends{_USERS}The controls are the unmodified pre-trained model, "
    "after the start text that is best on the evaluation part and the prompt: alone, and with the user's own replies "
    "and their prompts before it. Neither was trained on users' text."
)
_ABOUT_PERPLEXITY = (
    f"{_PERPLEXITY}The first three tokens of an utterance are given; all later tokens of the test utterances{_USERS}"
    "The controls are the unmodified pre-trained model, after the start text that is best "
    "on the evaluation part: alone, and with the user's own sentences before every utterance. Neither was trained on "
    "users' text."
)
_ABOUT_VALUE = {
    F1: "Test {} is the macro-F1 of each sub-population on its members' test examples, averaged over sub-populations; "
    "a constant prediction scores a third.",
    PERPLEXITY: _ABOUT_PERPLEXITY,
}
_ABOUT_LABELS = (
    " User mean is the mean of each user's accuracy; worst tenth is the mean over the tenth of users with the lowest "
    "accuracy. The controls ignore the input: they always predict the label that is most frequent in all users' "
    "training examples, or in the user's own."
)


QUANTILES = {"10th percentile": 0.1, "25th": 0.25, "Median": 0.5, "75th": 0.75, "90th": 0.9}


def user_values(results: Mapping[str, Any]) -> dict[str, list[float]]:
    """Each user's test value, all seeds together, by configuration; configurations without values are left out."""
    found = {
        key: all_user_values([run.get("test") for run in one["runs"]])
        for key, one in results.get("configurations", {}).items()
    }
    return {key: values for key, values in found.items() if values}


def control_values(results: Mapping[str, Any]) -> dict[str, list[float]]:
    runs = (results.get("controls") or {}).get("runs") or []
    found = {name: all_user_values([run.get(name) for run in runs]) for name in control_summaries(results)}
    return {name: values for name, values in found.items() if values}


def all_user_values(evaluations: Sequence[Mapping[str, Any] | None]) -> list[float]:
    """Each user's value of every evaluation."""
    values = (finite(value) for one in evaluations for value in (one or {}).get("user_values") or [])
    return [value for value in values if value is not None]


def user_quantile_table(results: Mapping[str, Any]) -> Table:
    """The distribution of the metric over users."""
    metric = user_metric_of(results)
    entries = [(title_of(results, key), values) for key, values in user_values(results).items()]
    entries += [(control_title(key), values) for key, values in control_values(results).items()]
    rows = [
        [
            title,
            *(metric.text(float(value)) for value in np.quantile(values, list(QUANTILES.values()))),
            count_text(len(values)),
        ]
        for title, values in entries
    ]
    columns = [
        Column(metric.heading(f"Users' {metric.title}")),
        *(Column(name, number=True) for name in QUANTILES),
        Column("Users", number=True),
    ]
    order = "from best to worst served" if metric.lower_is_better else "from worst to best served"
    note = f"Percentiles over users, {order}; the users of all runs together."
    return make_table(columns, rows, caption=f"Distribution of {metric.title} over users", note=note, collapsed=True)


def similarity_table(results: Mapping[str, Any]) -> Table | None:
    """How similar the users' vectors of two configurations are, over seeds."""
    found = similarity_means(results)
    if not found:
        return None
    rows = [
        [title_of(results, left), title_of(results, right), mean_std_text(average, std, digits=3), str(seeds)]
        for (left, right), (average, std, seeds) in found.items()
    ]
    columns = [
        Column("Configuration"),
        Column("Compared with"),
        Column("Rank correlation", number=True),
        Column("Seeds", number=True),
    ]
    note = (
        "Spearman's rank correlation of the distances between all pairs of users: 1 means that the same users are near "
        "and far in both configurations, 0 that the two are unrelated. Rotating all vectors, or scaling them by one "
        "factor, does not change it."
    )
    return make_table(columns, rows, caption="Similarity of users' vectors between configurations", note=note)


def similarity_means(
    results: Mapping[str, Any],
) -> dict[tuple[str, str], tuple[float | None, float | None, int]]:
    """Mean, standard deviation and number of seeds for each pair of configurations."""
    pairs: dict[tuple[str, str], list[float | None]] = {}
    for entry in results.get("similarity") or []:
        pairs.setdefault((entry["left"], entry["right"]), []).append(finite(entry.get("correlation")))
    found = {}
    for pair, values in pairs.items():
        known = [value for value in values if value is not None]
        found[pair] = (mean(values), sample_std(known) if len(known) == len(values) else None, len(values))
    return found
