"""The figures: learning, users, newcomers and bytes. Projections are in `projection_plots`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from typing import Any

import numpy as np
import plotly.graph_objects as go

from homespun.report.few_shot import (
    NEWCOMERS,
    EvaluatedUsers,
    ScoreCurve,
    evaluated_users,
    ignores_samples,
    in_context_curves,
    reference_summary,
    sample_counts,
    score_curves,
)
from homespun.report.figure_style import (
    CONTROL_COLOR,
    TEXT_COLOR,
    LegendEntry,
    Plot,
    configuration_colors,
    empty_figure,
    fit_axis,
    plotly_text,
    with_opacity,
)
from homespun.report.groups import confusion_plots
from homespun.report.projection_plots import projection_plots
from homespun.report.score_tables import (
    CONTROLS,
    QUANTILES,
    control_summaries,
    control_values,
    metric_of,
    summaries,
    summary_mean,
    title_of,
    user_metric_of,
    user_values,
)
from homespun.report.table_model import Metric, byte_text, finite
from homespun.report.traffic import Traffic, federated_traffic

MARK = {"size": 11, "line": {"color": "white", "width": 1}}


def plots(results: Mapping[str, Any]) -> dict[str, list[Plot]]:
    """All figures, by the key of their section."""
    return {
        "curves": learning_curves(results),
        "users": user_distribution(results),
        "newcomers": sample_curves(results),
        "groups": confusion_plots(results),
        "projections": projection_plots(results),
        "communication": byte_bars(results),
    }


def learning_curves(results: Mapping[str, Any]) -> list[Plot]:
    """The metric on the evaluation set against epochs."""
    figure, legend, metric = empty_figure(height=400), [], metric_of(results)
    for key, color in configuration_colors(results).items():
        title, runs = title_of(results, key), results["configurations"][key]["runs"]
        curves = [curve for run in runs if (curve := _curve(run, metric))]
        if not curves:
            continue
        if len(curves) > 1:
            for curve in curves:
                _, epochs, values = zip(*curve, strict=True)
                thin = {"color": with_opacity(color, 0.3), "width": 1}
                figure.add_scatter(x=epochs, y=values, mode="lines", line=thin, hoverinfo="skip")
        points = _mean_curve(curves)
        figure.add_scatter(
            x=[epoch for epoch, _ in points], y=[value for _, value in points], name=plotly_text(title),
            mode="lines+markers", line={"color": color, "width": 2.5}, marker={"size": 5},
            hovertemplate=f"{_value_shown(metric)} after %{{x:.4~g}} epochs<extra>{plotly_text(title)}</extra>",
        )  # fmt: skip
        legend.append(LegendEntry(title, color))
    if not legend:
        return []
    figure.update_xaxes(title_text="Epochs", rangemode="tozero")
    figure.update_yaxes(title_text=metric.heading(f"Evaluation {metric.title}"))
    fit_axis(figure, metric)
    return [Plot(figure, "Learning curves on the evaluation set", legend=tuple(legend))]


def _value_shown(metric: Metric) -> str:
    """A plotly template for the value of a point."""
    return f"%{{y:.{metric.digits}f}}{metric.unit}"


def _curve(run: Mapping[str, Any], metric: Metric) -> list[tuple[int, float, float]]:
    """Round, epoch and scaled value of every point that has a value."""
    points = (
        (entry["round"], finite(entry.get("epoch")), finite(entry.get("value"))) for entry in run.get("curve") or []
    )
    return [
        (round, epoch, metric.scaled(value))
        for round, epoch, value in points
        if epoch is not None and value is not None
    ]


def _mean_curve(curves: Sequence[Sequence[tuple[int, float, float]]]) -> list[tuple[float, float]]:
    """The mean over seeds, at the rounds in which every seed was evaluated."""
    by_round = [{round: (epoch, value) for round, epoch, value in curve} for curve in curves]
    common = sorted(set.intersection(*(set(curve) for curve in by_round)))
    return [
        (
            float(np.mean([curve[round][0] for curve in by_round])),
            float(np.mean([curve[round][1] for curve in by_round])),
        )
        for round in common
    ]


def user_distribution(results: Mapping[str, Any]) -> list[Plot]:
    """Each user's test value: a box per configuration and control, with mean and worst tenth marked."""
    rows, metric = _user_rows(results), user_metric_of(results)
    if not rows:
        return []
    figure = empty_figure(height=70 + 46 * len(rows))
    for place, (title, color, values, found) in enumerate(rows):
        low, first, half, third, high = ([value] for value in np.quantile(values, list(QUANTILES.values())))
        figure.add_box(
            y=[place], lowerfence=low, q1=first, median=half, q3=third, upperfence=high, orientation="h",
            width=0.5, line={"color": color, "width": 1.5}, fillcolor=with_opacity(color, 0.22), hoverinfo="skip",
        )  # fmt: skip
        for column, symbol, name in (
            ("user_worst_tenth", "triangle-up", "worst tenth"),
            ("user_mean", "diamond", "mean over users"),
        ):
            value = summary_mean(found, column)
            if value is not None:
                figure.add_scatter(
                    x=[metric.scaled(value)], y=[place], mode="markers",
                    marker={**MARK, "symbol": symbol, "color": color},
                    hovertemplate=f"{name}: {metric.text_with_unit(value)}<extra>{plotly_text(title)}</extra>",
                )  # fmt: skip
    figure.update_xaxes(title_text=metric.heading(f"Test {metric.title} of a user"))
    if metric.percent:
        figure.update_xaxes(range=[-3, 103])
    else:
        fit_axis(figure, metric, axis="x")
    _name_rows(figure, [title for title, *_ in rows])
    marks = (LegendEntry("◆ mean over users", ""), LegendEntry("▲ worst tenth", ""))
    return [Plot(figure, f"Distribution of {metric.title} over users", legend=marks)]


def _user_rows(results: Mapping[str, Any]) -> list[tuple[str, str, list[float], Mapping[str, Any]]]:
    """Title, colour, scaled values of all users of all seeds, and summary."""
    tested, controls, colors = summaries(results, "test"), control_summaries(results), configuration_colors(results)
    rows = [(title_of(results, key), colors[key], values, tested[key]) for key, values in user_values(results).items()]
    rows += [
        (CONTROLS[name], CONTROL_COLOR, values, controls[name]) for name, values in control_values(results).items()
    ]
    shown = user_metric_of(results).scaled
    return [(title, color, [shown(value) for value in values], found) for title, color, values, found in rows]


def _name_rows(figure: go.Figure, names: Sequence[str]) -> None:
    """Label the rows from top to bottom. Positions are numbers, because two rows may have the same name."""
    figure.update_yaxes(
        tickvals=list(range(len(names))),
        ticktext=[_on_two_lines(name) for name in names],
        range=[len(names) - 0.45, -0.55],
        showgrid=False,
    )


def _on_two_lines(name: str) -> str:
    """A long name on two lines, to leave room for the data on a narrow screen."""
    words = plotly_text(name, 36).split(" ")
    if len(words) < 2 or len(name) < 14:
        return " ".join(words)
    cut = min(
        range(1, len(words)),
        key=lambda place: abs(len(" ".join(words[:place])) - len(" ".join(words[place:]))),
    )
    return " ".join(words[:cut]) + "<br>" + " ".join(words[cut:])


def sample_curves(results: Mapping[str, Any]) -> list[Plot]:
    """Scores by number of the user's own samples."""
    return [plot for users in evaluated_users(results) for plot in _samples_plot(results, users)]


def _samples_plot(results: Mapping[str, Any], users: EvaluatedUsers) -> list[Plot]:
    shown, metric, colors = score_curves(results, users), metric_of(results), configuration_colors(results)
    numbers, figure, legend = sample_counts(shown), empty_figure(height=380), []
    for curve in shown:
        legend += _draw(figure, curve, numbers, color=colors[curve.key], metric=metric)
    if not legend:
        return []
    for curve in in_context_curves(results, users):
        legend += _draw(figure, curve, numbers, color=CONTROL_COLOR, metric=metric)
    for title, color, value in _references(results, users, shown):
        if value is not None:
            _level(figure, value, color=color, title=title, metric=metric)
            legend.append(LegendEntry(title, color, "dashed"))
    figure.update_xaxes(
        title_text=users.samples, tickvals=list(range(len(numbers))), ticktext=list(map(plotly_text, numbers)),
        range=[-0.3, len(numbers) - 0.7], showgrid=False,
    )  # fmt: skip
    figure.update_yaxes(title_text=metric.heading(f"{users.title}' test {metric.title}"))
    fit_axis(figure, metric)
    described = f"{users.title}' result by number of own samples"
    return [Plot(figure, described, title=users.title if users.captioned else "", legend=tuple(legend))]


def _draw(
    figure: go.Figure, curve: ScoreCurve, numbers: Sequence[str], *, color: str, metric: Metric
) -> list[LegendEntry]:
    """Draw a configuration's line: horizontal for a model that does not adapt to samples."""
    known = {number: value for number in numbers if (value := summary_mean(curve.at(number))) is not None}
    if not known:
        return []
    if ignores_samples(curve, numbers):
        _level(figure, known["0"], color=color, title=curve.title, metric=metric)
        return [LegendEntry(f"{curve.title}, for any number of samples", color, "dashed")]
    deviations = [finite((curve.at(number).get("value") or {}).get("std")) or 0.0 for number in known]
    figure.add_scatter(
        x=[numbers.index(number) for number in known], y=[metric.scaled(value) for value in known.values()],
        error_y={"array": [metric.scaled(value) for value in deviations], "thickness": 1.2, "width": 4},
        mode="lines+markers", marker={"size": 8},
        line={"color": color, "width": 2.5},
        hovertemplate=f"{_value_shown(metric)}<extra>{plotly_text(curve.title)}</extra>",
    )  # fmt: skip
    return [LegendEntry(curve.title, color, "line")]


def _references(
    results: Mapping[str, Any], users: EvaluatedUsers, shown: Sequence[ScoreCurve]
) -> list[tuple[str, str, float | None]]:
    """Title, colour and value of the reference lines: one control, or the participants of each configuration."""
    if users is not NEWCOMERS:
        return [(users.reference, CONTROL_COLOR, summary_mean(reference_summary(results, users, shown[0].key)))]
    return [
        (
            f"{curve.title}, participants",
            configuration_colors(results)[curve.key],
            summary_mean(reference_summary(results, users, curve.key)),
        )
        for curve in shown
        if not ignores_samples(curve, sample_counts(shown))
    ]


def _level(figure: go.Figure, value: float, *, color: str, title: str, metric: Metric) -> None:
    # A trace rather than a shape: shapes neither extend the range of the axis nor have hover text.
    figure.add_scatter(
        x=[-1, 100], y=[metric.scaled(value)] * 2, mode="lines", line={"color": color, "width": 1.5, "dash": "dash"},
        hovertemplate=f"{metric.text_with_unit(value)}<extra>{plotly_text(title)}</extra>",
    )  # fmt: skip


def byte_bars(results: Mapping[str, Any]) -> list[Plot]:
    """Bytes that a client receives and uploads in a round, by role."""
    found = federated_traffic(results)
    if not found:
        return []
    sizes = [max(row.down_per_client or 0, row.up_per_client or 0) for rows in found.values() for row in rows]
    colors = configuration_colors(results)
    legend = tuple(LegendEntry(title_of(results, key), colors[key], "dot") for key in found)
    return [
        Plot(
            _bars(found, colors, side=side, largest=max(sizes)),
            f"{title}, by role",
            title=title,
            legend=legend,
        )
        for side, title in (
            ("down_per_client", "Down: a client receives"),
            ("up_per_client", "Up: a client uploads"),
        )
    ]


def _bars(found: Mapping[str, Sequence[Traffic]], colors: Mapping[str, str], *, side: str, largest: float) -> go.Figure:
    roles = list(dict.fromkeys(row.role for rows in found.values() for row in rows))
    width = 0.8 / len(found)
    figure = empty_figure(height=90 + len(roles) * max(40, 22 * len(found)))
    for place, (key, rows) in enumerate(found.items()):
        values = {row.role: getattr(row, side) or 0.0 for row in rows}
        positions = [roles.index(role) - 0.4 + (place + 0.5) * width for role in values]
        # The scale is logarithmic and begins at one byte: zero is a bar without length, labelled "0 B".
        lengths = [max(1.0, value) for value in values.values()]
        figure.add_bar(
            x=lengths,
            y=positions,
            width=width * 0.86,
            orientation="h",
            marker={"color": colors[key]},
            hoverinfo="skip",
        )
        figure.add_scatter(
            x=lengths, y=positions, mode="text", text=[f" {byte_text(value)}" for value in values.values()],
            textposition="middle right", textfont={"size": 12, "color": TEXT_COLOR}, cliponaxis=False,
            hoverinfo="skip",
        )  # fmt: skip
    top = log10(max(largest, 1000.0))
    figure.update_xaxes(
        type="log", range=[0, top * 1.32], title_text="Bytes per client and round, logarithmic",
        tickvals=[1, 1e3, 1e6, 1e9], ticktext=["1 B", "1 kB", "1 MB", "1 GB"],
    )  # fmt: skip
    _name_rows(figure, roles)
    return figure
