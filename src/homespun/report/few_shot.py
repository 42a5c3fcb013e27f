"""Scores by number of the user's own samples: for newcomers, and for participants who adapt locally."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from homespun.report.score_tables import (
    CONTROLS,
    IN_CONTEXT,
    all_user_values,
    control_summaries,
    folds_of,
    metric_of,
    seed_note,
    summaries,
    summary_mean,
    title_of,
)
from homespun.report.table_model import MISSING, PERPLEXITY, Cell, Column, Table, make_table, mark_best

SAME = "same"  # for a model that does not adapt to samples
MIDDLE_80 = "80 of 100 users"  # without the best and the worst tenth


@dataclass(frozen=True)
class EvaluatedUsers:
    """Users who adapt a model: their title, their part of a summary, and the reference to compare their scores with."""

    title: str
    part: str
    about: str
    reference: str
    samples: str = "Own samples"
    captioned: bool = True  # one of several tables


KNOWN = EvaluatedUsers(
    "Known users",
    part="adapted",
    about="of users who took part in training, after adapting locally to this many new utterances of their own",
    reference=CONTROLS["untouched"],
)
WITHHELD = EvaluatedUsers(
    "Withheld users",
    part="newcomers",
    about="of users who never took part in training, after adapting locally to this many utterances of their own",
    reference=CONTROLS["untouched"],
)
NEWCOMERS = EvaluatedUsers(
    "Newcomers",
    part="newcomers",
    about="of users who never took part in training, after adapting locally to this many examples of their own",
    reference="Participants",
    samples="Own examples",
    captioned=False,
)


def evaluated_users(results: Mapping[str, Any]) -> tuple[EvaluatedUsers, ...]:
    """Known and withheld users if both adapt, as for text; otherwise newcomers."""
    both = metric_of(results) == PERPLEXITY or any(summaries(results, "adapted").values())
    return (KNOWN, WITHHELD) if both else (NEWCOMERS,)


@dataclass(frozen=True)
class ScoreCurve:
    """One configuration's scores by number of own samples: a column of a table, a line of a figure."""

    key: str
    title: str
    found: Mapping[str, Mapping[str, Any]]

    def at(self, number: str) -> Mapping[str, Any]:
        return self.found.get(number) or {}


def score_curves(results: Mapping[str, Any], users: EvaluatedUsers) -> list[ScoreCurve]:
    """The scores of every configuration that was evaluated on these users."""
    reached = summaries(results, users.part)
    made = []
    for key, found in reached.items():
        title, summary = title_of(results, key), results["configurations"][key]["summary"]
        if users is KNOWN and not found and any(reached.values()):
            found = {"0": summary["test"]}  # nothing to adapt: the score after training
        if found:
            made.append(ScoreCurve(key, title, found))
    return made


def in_context_curves(results: Mapping[str, Any], users: EvaluatedUsers) -> list[ScoreCurve]:
    """The control that needs no training: the base model with the user's own sentences in its context."""
    if users is KNOWN:
        summary = (results.get("controls") or {}).get("summary") or {}
        found = {name.removeprefix("in_context_"): one for name, one in summary.items() if name.startswith("in_con")}
    else:
        first = next(iter(results["configurations"].values()))["summary"]
        found = dict(first.get("newcomers_in_context") or {})
    if not found:
        return []
    return [
        ScoreCurve(
            "", IN_CONTEXT, {"0": reference_summary(results, users, next(iter(results["configurations"]))), **found}
        )
    ]


def sample_counts(shown: Sequence[ScoreCurve]) -> list[str]:
    """The numbers of own samples of these curves, in order."""
    return in_order({number for curve in shown for number in curve.found})


def in_order(numbers: Iterable[str]) -> list[str]:
    """Numbers of own samples, ascending, `all` last."""
    return sorted(numbers, key=lambda text: (not text.isdigit(), int(text) if text.isdigit() else 0, text))


def ignores_samples(curve: ScoreCurve, numbers: Sequence[str]) -> bool:
    """Whether a model does not adapt: others were evaluated with several numbers of samples, this one only with 0."""
    return list(curve.found) == ["0"] and list(numbers) != ["0"]


def reference_summary(results: Mapping[str, Any], users: EvaluatedUsers, key: str) -> Mapping[str, Any]:
    """The summary to compare a configuration with: the base model's, or the participants'."""
    summary = results["configurations"][key]["summary"]
    if users is KNOWN:
        return control_summaries(results).get("untouched") or {}
    return summary.get("newcomers_untouched" if users is WITHHELD else "test") or {}


def few_shot_tables(results: Mapping[str, Any]) -> list[Table]:
    found = [few_shot_table(results, users) for users in evaluated_users(results)]
    return [made for made in found if made is not None]


def few_shot_table(results: Mapping[str, Any], users: EvaluatedUsers) -> Table | None:
    """A row for each number of own samples, a column for each configuration."""
    shown, metric = score_curves(results, users), metric_of(results)
    if not shown:
        return None
    controls = in_context_curves(results, users)
    rows = [[Cell(number), *_row(results, [*shown, *controls], number)] for number in sample_counts(shown)]
    compared = [
        reference_summary(results, users, curve.key or shown[0].key).get("value") for curve in (*shown, *controls)
    ]
    rows.append([Cell(users.reference), *(Cell(metric.mean_and_std(value)) for value in compared)])
    named = [curve.title for curve in (*shown, *controls)]
    columns = [Column(users.samples), *(Column(metric.heading(title), number=True) for title in named)]
    caption = users.title if users.captioned else ""
    return make_table(columns, rows, caption=caption, note=_note(results, users, shown))


def configuration_table(results: Mapping[str, Any], users: EvaluatedUsers) -> Table | None:
    """The transposed table, for many configurations: a row for each, the base model first."""
    shown = score_curves(results, users)
    if not shown:
        return None
    numbers = sample_counts(shown)
    shown = [_base_model_curve(results, users, shown[0].key), *in_context_curves(results, users), *shown]
    columns = [_row(results, shown, number) for number in numbers]
    rows = zip([Cell(curve.title) for curve in shown], *columns, strict=True)
    return make_table([Column("Configuration"), *(Column(number, number=True) for number in numbers)], rows)


def _base_model_curve(results: Mapping[str, Any], users: EvaluatedUsers, key: str) -> ScoreCurve:
    return ScoreCurve("", users.reference, {"0": reference_summary(results, users, key)})


def user_range_table(results: Mapping[str, Any], users: EvaluatedUsers) -> Table | None:
    """The distribution over users with all of their own samples; the base model comes first."""
    shown, metric = score_curves(results, users), metric_of(results)
    if not shown:
        return None
    most, base = sample_counts(shown)[-1], _base_model_curve(results, users, shown[0].key)
    values = [
        _base_model_values(results, users, shown[0].key),
        *(_values_at(results, users, curve.key) for curve in shown),
    ]
    found = [curve.at(most) or curve.at("0") for curve in (base, *shown)]

    def cells(column: str) -> list[Cell]:
        texts = [Cell(metric.mean_and_std(one.get(column))) for one in found]
        return mark_best(texts, [summary_mean(one, column) for one in found], metric)

    between = [" to ".join(map(metric.text, np.quantile(some, [0.1, 0.9]))) if some else MISSING for some in values]
    names = [curve.title for curve in (base, *shown)]
    columns = [
        Column("Configuration"),
        *(Column(name, number=True) for name in ("User mean", MIDDLE_80, "Worst tenth")),
    ]
    return make_table(columns, zip(names, cells("user_mean"), between, cells("user_worst_tenth"), strict=True))


def _values_at(results: Mapping[str, Any], users: EvaluatedUsers, key: str) -> list[float]:
    """Each user's value with all samples, all runs together; for a model that does not adapt, the value as trained."""
    runs = results["configurations"][key]["runs"]
    each = [run.get(users.part) or {} for run in runs]
    return all_user_values([one.get("all") or one.get("0") or run["test"] for one, run in zip(each, runs, strict=True)])


def _base_model_values(results: Mapping[str, Any], users: EvaluatedUsers, key: str) -> list[float]:
    if users is KNOWN:
        return all_user_values([run.get("untouched") for run in (results.get("controls") or {}).get("runs") or []])
    return all_user_values([run.get("newcomers_untouched") for run in results["configurations"][key]["runs"]])


def _row(results: Mapping[str, Any], shown: Sequence[ScoreCurve], number: str) -> list[Cell]:
    metric, numbers = metric_of(results), sample_counts(shown)

    def cell(curve: ScoreCurve) -> Cell:
        if number in curve.found:
            return Cell(metric.mean_and_std(curve.at(number).get("value")))
        return Cell(SAME if ignores_samples(curve, numbers) else MISSING)

    means = [summary_mean(curve.at("0" if ignores_samples(curve, numbers) else number)) for curve in shown]
    return mark_best([cell(curve) for curve in shown], means, metric)


def _note(results: Mapping[str, Any], users: EvaluatedUsers, shown: Sequence[ScoreCurve]) -> str:
    served = {curve.key for curve in shown}
    lacking = [title_of(results, key) for key in results.get("configurations", {}) if key not in served]
    folds, same = folds_of(results), any(ignores_samples(curve, sample_counts(shown)) for curve in shown)
    parts = [
        f"Test {metric_of(results).title} {users.about}. The shared model does not change and nothing is uploaded. "
        f"All rows use the same test examples{_but_the_last(users)}. The best value of a row is bold.",
        f"Each of {folds} folds withholds different users; the newcomers of all folds are pooled."
        if folds and folds > 1 and users is not KNOWN
        else "",
        _about_context(results, users),
        f"“{SAME.capitalize()}”: there is nothing to personalize, so the number of samples makes no difference."
        if same
        else "",
        f"Not evaluated on newcomers: {', '.join(lacking)}." if lacking else "",
        seed_note(results),
    ]
    return " ".join(part for part in parts if part)


def _about_context(results: Mapping[str, Any], users: EvaluatedUsers) -> str:
    if not in_context_curves(results, users):
        return ""
    return (
        f"“{IN_CONTEXT}”: a control without any training. The sentences that the others adapt to are placed before "
        "every utterance, as many of the last ones as fit into the model's context."
    )


def _but_the_last(users: EvaluatedUsers) -> str:
    return " except the last, which is the result of the participants" if users is NEWCOMERS else ""
