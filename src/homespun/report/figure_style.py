"""What all figures share: colours, layout, and legends that the page writes beside the figure.

A legend inside a figure would cover data or labels on a narrow screen; text on the page wraps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Any, Literal

import plotly.graph_objects as go

from homespun.report.table_model import Metric, shorten

CONFIGURATION_COLORS = (
    "#2563c9", "#d98200", "#0f8f6f", "#b0418f", "#6f52c4", "#a3542c", "#1192b8", "#5f6b7a",
)  # fmt: skip
GROUP_COLORS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#d4a900", "#b07aa1", "#8c6d5a", "#2b3a67", "#ff9da7",
)  # fmt: skip
LARGE_FACTOR = 8.0
CONTROL_COLOR = "#9a9a9a"
OTHER_COLOR = "#cfcfcf"
TEXT_COLOR = "#1d2430"
GRID_COLOR = "#e6e9ee"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True)
class LegendEntry:
    """One entry of a legend."""

    label: str
    color: str
    mark: Literal["line", "dashed", "dot", "ring"] = "line"


@dataclass(frozen=True)
class Plot:
    figure: go.Figure
    description: str  # for screen readers
    title: str = ""
    legend: tuple[LegendEntry, ...] = ()


def configuration_colors(results: Mapping[str, Any]) -> dict[str, str]:
    """One colour per configuration, the same in every figure."""
    keys = list(results.get("configurations", {}))
    return {key: CONFIGURATION_COLORS[place % len(CONFIGURATION_COLORS)] for place, key in enumerate(keys)}


def with_opacity(color: str, opacity: float) -> str:
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def plotly_text(text: Any, longest: int = 40) -> str:
    """Escape text from the data for plotly, which interprets some HTML in labels and %{names} in templates."""
    return escape(shorten(text, longest), quote=False).replace("%{", "% {")


def fit_axis(figure: go.Figure, metric: Metric, *, axis: Literal["x", "y"] = "y") -> None:
    """Set the axis range: it holds every value and has a minimum width, so that noise does not fill the figure.

    Values that differ by a large factor get a logarithmic axis. On a linear one, the perplexity of a model that
    learned nothing would leave no room for the others.
    """
    values = [value for trace in figure.data for value in _extent(trace, axis)]
    low, high = min(values), max(values)
    update = figure.update_yaxes if axis == "y" else figure.update_xaxes
    if not metric.percent and low > 0 and high / low > LARGE_FACTOR:
        margin = 0.05 * log10(high / low)
        ticks = _round_numbers(low, high)
        names = [f"{tick:,}" for tick in ticks]  # in full: plotly would abbreviate 50,000 to a small 5
        update(type="log", range=[log10(low) - margin, log10(high) + margin], tickvals=ticks, ticktext=names)
        return
    least = 10.0 if metric.percent else 0.05 * abs(high)
    lacking = max(0.0, least - (high - low)) / 2
    margin = 0.05 * max(least, high - low)
    update(range=[low - lacking - margin, high + lacking + margin])


def _round_numbers(low: float, high: float) -> list[int | float]:
    """1, 2, 5, 10, 20 ...; only powers of ten if the range is large."""
    first, last = floor(log10(low)), ceil(log10(high))
    steps = (1, 2, 5) if last - first < 5 else (1,)
    return [step * (10**power if power >= 0 else 10.0**power) for power in range(first, last + 1) for step in steps]


def _extent(trace: Any, axis: str) -> list[float]:
    """The values of a trace along an axis; for a box its whiskers, with error bars their ends."""
    if trace.type == "box":
        return [float(trace.lowerfence[0]), float(trace.upperfence[0])]
    values, error = getattr(trace, axis), getattr(trace, f"error_{axis}")
    deviations = error.array if error.array is not None else [0.0] * len(values)
    return [value + sign * float(part) for value, part in zip(values, deviations, strict=True) for sign in (-1, 1)]


def empty_figure(*, height: int) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 8, "r": 16, "t": 12, "b": 8},
        font={"family": FONT, "size": 13, "color": TEXT_COLOR},
        paper_bgcolor="white",
        plot_bgcolor="white",
        showlegend=False,
        hoverlabel={"bgcolor": "white", "font": {"family": FONT, "size": 12}},
    )
    axis = {
        "automargin": True,
        "gridcolor": GRID_COLOR,
        "zeroline": False,
        "linecolor": "#b9c0cb",
        "ticks": "",
        "title": {"standoff": 10, "font": {"size": 13}},
    }
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    return figure
