"""Two-dimensional projections of users' vectors, coloured by group, label or context."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import plotly.graph_objects as go

from homespun.report.figure_style import GROUP_COLORS, OTHER_COLOR, LegendEntry, Plot, empty_figure, plotly_text
from homespun.report.score_tables import shown_run_suffix, title_of
from homespun.report.table_model import count_text, finite, shorten

MARKS: tuple[Literal["dot", "ring"], ...] = ("dot", "ring")
NAMED = len(MARKS) * len(GROUP_COLORS)  # groups or labels that have their own mark; the others are grey
LEGENDS = {
    "group": "Coloured by group:",
    "label": "Coloured by a user's most frequent label:",
    "context": "Coloured by a user's most frequent context:",
}
POINT = {"size": 7, "opacity": 0.85}
PROJECTIONS = {"pca": "PCA", "tsne": "t-SNE"}


def projection_plots(results: Mapping[str, Any]) -> list[Plot]:
    """PCA and t-SNE, side by side, of every configuration whose users have vectors; from the first seed."""
    found = {
        key: drawn
        for key, configuration in results.get("configurations", {}).items()
        if (drawn := configuration["runs"][0].get("maps"))
    }
    column = _coloured_by(list(found.values()))
    shown: list[Any] = [name for drawn in found.values() for name in drawn.get(column) or []]
    names = _frequent(shown)
    legend = _legend(shown, names, title=LEGENDS[column]) if column in LEGENDS and names else ()

    def figure(drawn: Mapping[str, Any], projection: str) -> go.Figure:
        if column == "positive_rate":
            return _rates(drawn.get(column) or [], drawn[projection])
        return _names(drawn.get(column) or [None] * len(drawn[projection]), drawn[projection], names=names)

    return [
        Plot(
            figure(drawn, projection),
            f"{name} of users' vectors with {title_of(results, key)}",
            title=f"{title_of(results, key)}: {name}, {_who(drawn)}{shown_run_suffix(results)}",
            legend=legend,
        )
        for key, drawn in found.items()
        for projection, name in PROJECTIONS.items()
    ]


def _who(drawn: Mapping[str, Any]) -> str:
    users, everyone = drawn.get("users"), drawn.get("of")
    return (
        f"{count_text(users)} of {count_text(everyone)} users, sampled"
        if users != everyone
        else f"all {count_text(users)} users"
    )


def _coloured_by(drawn: Sequence[Mapping[str, Any]]) -> str:
    """The column to colour by: the known group, else the rate of positives of a two-class task, else the most frequent
    label, else the most frequent context."""
    for column in ("group", "positive_rate", "label"):
        if any(value is not None for one in drawn for value in one.get(column) or []):
            return column
    return "context"


def _frequent(names: Sequence[Any]) -> list[Any]:
    """The most frequent names, which get a colour, in natural order (2 before 10)."""
    common = Counter(name for name in names if name is not None).most_common(NAMED)
    return sorted((name for name, _ in common), key=_natural)


def _natural(name: Any) -> list[Any]:
    parts = re.split(r"(\d+)", str(name))  # every second part is a number
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


def _legend(values: Sequence[Any], names: Sequence[Any], *, title: str) -> tuple[LegendEntry, ...]:
    keys = [LegendEntry(shorten(name, 40), *_mark(place)) for place, name in enumerate(names)]
    others = any(value not in names for value in values)
    return (LegendEntry(title, ""), *keys, *([LegendEntry("other", OTHER_COLOR, "dot")] if others else []))


def _mark(place: int) -> tuple[str, Literal["dot", "ring"]]:
    again, color = divmod(place, len(GROUP_COLORS))
    return GROUP_COLORS[color], MARKS[again]


def _names(values: Sequence[Any], points: Sequence[Sequence[float]], *, names: Sequence[Any]) -> go.Figure:
    figure = _plane()
    places: dict[int, list[Sequence[float]]] = {}
    for name, point in zip(values, points, strict=True):
        places.setdefault(names.index(name) if name in names else -1, []).append(point)
    for place in sorted(places):  # grey first, underneath
        across, up = zip(*places[place], strict=True)
        color, mark = (OTHER_COLOR, "dot") if place < 0 else _mark(place)
        symbol = {"symbol": "circle-open", "line": {"width": 2}} if mark == "ring" else {}
        figure.add_scatter(
            x=across, y=up, mode="markers",
            marker={**POINT, "color": color, **symbol},
            hovertemplate=("other" if place < 0 else plotly_text(names[place])) + "<extra></extra>",
        )  # fmt: skip
    return figure


def _rates(values: Sequence[Any], points: Sequence[Sequence[float]]) -> go.Figure:
    figure = _plane()
    rates = [(finite(value), point) for value, point in zip(values, points, strict=True)]
    known = [(100 * rate, *point) for rate, point in rates if rate is not None]
    unknown = [point for rate, point in rates if rate is None]  # users without examples
    if unknown:
        figure.add_traces(_names([None] * len(unknown), unknown, names=[]).data)
    colors = [rate for rate, *_ in known]
    scale = {"title": {"text": "positives, %"}, "thickness": 12, "outlinewidth": 0, "len": 0.9}
    figure.add_scatter(
        x=[across for _, across, _ in known], y=[up for *_, up in known], mode="markers",
        marker={**POINT, "color": colors, "colorscale": "Viridis", "showscale": True, "colorbar": scale},
        hovertemplate="%{marker.color:.1f} % positives<extra></extra>",
    )  # fmt: skip
    return figure


def _plane() -> go.Figure:
    figure = empty_figure(height=380)
    figure.update_layout(margin={"l": 8, "r": 8, "t": 8, "b": 8})
    # The axes have no meaning of their own: no numbers, only a frame, and the same scale for both.
    figure.update_xaxes(showticklabels=False, showgrid=False, mirror=True, showline=True)
    figure.update_yaxes(showticklabels=False, showgrid=False, mirror=True, showline=True, scaleanchor="x")
    return figure
