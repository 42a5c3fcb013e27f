"""Figures of a documentation page as SVG files: learning curves, scores, and projections of users' vectors.

`docs/generate.py` writes them to `docs/figures` from the results of a finished comparison. A report has interactive
versions; a page needs files that every Markdown viewer shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from homespun.report.figure_style import GROUP_COLORS, OTHER_COLOR
from homespun.report.score_tables import metric_of
from homespun.report.table_model import Table

LINE_COLORS = ("#1f6fb4", "#d1622b", "#3a8f4d", "#8a57a8", "#b8860b", "#666666")
WIDTH, HEIGHT, MARGIN = 720, 380, 56
PANEL = 340  # width and height of one projection
NAMED = 6  # groups or labels that have a colour
ROW = 24  # height of a row of dots


def text_at(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def drawing(width: int, height: int, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" fill="#222">'
    )
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="white"/>', *parts, "</svg>"]) + "\n"


def curves(results: Mapping[str, Any]) -> str:
    """The metric on the evaluation part by epoch: thick lines are means over seeds, thin lines single seeds."""
    metric = metric_of(results)
    drawn = [
        (one["title"], [[(p["epoch"], metric.scaled(p["value"])) for p in run["curve"]] for run in one["runs"]])
        for one in results["configurations"].values()
    ]
    points = [point for _, runs in drawn for run in runs for point in run]
    most = max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)

    def across(epoch: float) -> float:
        return MARGIN + (WIDTH - 2 * MARGIN) * epoch / most

    def up(value: float) -> float:
        return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (value - low) / ((high - low) or 1)

    def line(run: Sequence[tuple[float, float]], color: str, width: float, opacity: float) -> str:
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in run)
        return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}" opacity="{opacity}"/>'

    parts = [
        f'<path d="M{MARGIN} {MARGIN}V{HEIGHT - MARGIN}H{WIDTH - MARGIN}" fill="none" stroke="#888"/>',
        text_at(MARGIN, MARGIN - 30, metric.heading(f"Evaluation {metric.title}")),
        text_at(WIDTH - MARGIN, HEIGHT - MARGIN + 32, "epochs", anchor="end"),
        *(text_at(MARGIN - 6, up(y) + 4, f"{y:.0f}", anchor="end") for y in (low, high)),
        *(text_at(across(x), HEIGHT - MARGIN + 16, f"{x:g}", anchor="middle") for x in (0, most)),
    ]
    for index, (title, runs) in enumerate(drawn):
        color = LINE_COLORS[index % len(LINE_COLORS)]
        parts += [line(run, color, 1, 0.35) for run in runs]
        shared = min(map(len, runs))
        parts.append(line([tuple(np.mean([run[at] for run in runs], axis=0)) for at in range(shared)], color, 2.5, 1))
        x = MARGIN + index * (WIDTH - 2 * MARGIN) / len(drawn)
        parts.append(f'<rect x="{x:.1f}" y="{MARGIN - 20}" width="14" height="4" fill="{color}"/>')
        parts.append(text_at(x + 18, MARGIN - 14, title, size=11))
    return drawing(WIDTH, HEIGHT, parts)


def _number(text: str) -> float | None:
    """The first number of a table's cell; None if it has none."""
    try:
        return float(text.split()[0])
    except ValueError:
        return None


def by_samples(panels: Sequence[tuple[str, Table]]) -> str:
    """A line for each configuration over the number of own samples; one panel for each table."""
    rows = [[(row[0].text, [_number(cell.text) for cell in row[1:]]) for row in table.rows] for _, table in panels]
    known = [value for lines in rows for _, values in lines for value in values if value is not None]
    low, high = min(known), max(known)
    names = [name for name, _ in rows[0]]
    top, bottom = MARGIN, MARGIN + PANEL - 80

    def up(value: float) -> float:
        return bottom - (bottom - top) * (value - low) / ((high - low) or 1)

    parts: list[str] = []
    for number, ((title, table), lines) in enumerate(zip(panels, rows, strict=True)):
        left, right = MARGIN + number * (PANEL + 20), number * (PANEL + 20) + PANEL
        places = np.linspace(left, right, len(table.columns) - 1).tolist()
        parts += [
            text_at(left, top - 16, f"{title}: perplexity by number of own samples", size=13),
            f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#888"/>',
            *(text_at(left - 6, up(value) + 4, f"{value:.0f}", anchor="end") for value in (low, high)),
            *(
                text_at(x, bottom + 16, column.title, anchor="middle", size=11)
                for x, column in zip(places, table.columns[1:], strict=True)
            ),
        ]
        for name, values in lines:
            color = LINE_COLORS[names.index(name) % len(LINE_COLORS)]
            constant = [value for value in values if value is not None]
            drawn = constant * len(values) if len(constant) == 1 else values  # "same" for any number of samples
            points = [(x, up(value)) for x, value in zip(places, drawn, strict=True) if value is not None]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2.5"/>')
    for number, name in enumerate(names):
        y, color = bottom + 40 + 18 * number, LINE_COLORS[number % len(LINE_COLORS)]
        parts.append(f'<rect x="{MARGIN}" y="{y - 7}" width="14" height="4" fill="{color}"/>')
        parts.append(text_at(MARGIN + 20, y, name, size=11))
    return drawing(PANEL * len(panels) + 40, bottom + 40 + 18 * len(names), parts)


def dots(table: Table, columns: Sequence[tuple[int, str]]) -> str:
    """A row for each method: filled dots for scores, hollow ones for the paper's, which are in brackets in a cell."""
    left, right = 250, WIDTH - 40
    height = MARGIN + ROW * len(table.rows) + 30

    def across(score: float) -> float:
        return left + (right - left) * (score - 0.3) / 0.7

    parts = [
        f'<path d="M{across(x):.1f} {MARGIN - 10}V{height - 30}" stroke="#ddd"/>' for x in np.arange(0.3, 1.01, 0.1)
    ]
    parts += [text_at(across(x), height - 12, f"{x:.1f}", anchor="middle", size=11) for x in np.arange(0.3, 1.01, 0.1)]
    for number, (column, name) in enumerate(columns):
        color, x = LINE_COLORS[number], left + 150 * number
        parts.append(f'<circle cx="{x}" cy="20" r="5" fill="{color}"/>')
        parts.append(text_at(x + 10, 24, name, size=11))
        for place, row in enumerate(table.rows):
            y = MARGIN + ROW * place
            here, _, paper = row[column].text.partition("(")
            for text, fill in ((here, color), (paper.rstrip(")"), "none")):
                score = _number(text)
                if score is not None:
                    parts.append(
                        f'<circle cx="{across(score):.1f}" cy="{y + 8 * number - 4}" r="5" fill="{fill}" '
                        f'stroke="{color}" stroke-width="1.5"/>'
                    )
    parts += [text_at(left - 12, MARGIN + ROW * n + 4, row[0].text, anchor="end") for n, row in enumerate(table.rows)]
    parts.append(text_at(left + 150 * len(columns), 24, "hollow: the paper", size=11))
    return drawing(WIDTH, height, parts)


def maps(results: Mapping[str, Any]) -> str:
    """t-SNE of the first seed's user vectors, with a panel for every configuration that has them; coloured by the rate
    of positives, the known group or the most frequent label."""
    first = {one["title"]: one["runs"][0].get("maps") for one in results["configurations"].values()}
    found = [(title, drawn) for title, drawn in first.items() if drawn]
    parts: list[str] = []
    legend: list[tuple[str, str]] = []
    for number, (title, drawn) in enumerate(found):
        colors, legend = _colors(drawn)
        points = np.asarray(drawn["tsne"], dtype=float)
        scaled = (points - points.min(axis=0)) / np.maximum(np.ptp(points, axis=0), 1e-9)
        left = number * PANEL
        parts.append(text_at(left + 16, 20, title, size=13))
        parts += [
            f'<circle cx="{left + 16 + x * (PANEL - 32):.1f}" cy="{36 + y * (PANEL - 52):.1f}" r="3.2" fill="{color}"/>'
            for (x, y), color in zip(scaled.tolist(), colors, strict=True)
        ]
    for number, (name, color) in enumerate(legend):  # of the last panel: all show the same users
        x, y = 16 + 110 * number, PANEL + 12
        parts.append(f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{color}"/>')
        parts.append(text_at(x + 8, y, name[:14], size=11))
    return drawing(PANEL * len(found), PANEL + 24, parts)


def _colors(drawn: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, str]]]:
    """A colour for each user, and the legend."""
    rates = drawn.get("positive_rate")
    if rates:  # the paper's figure 4
        known = [rate for rate in rates if rate is not None]
        low, high = min(known), max(known)
        shades = [OTHER_COLOR if rate is None else _shade((rate - low) / ((high - low) or 1)) for rate in rates]
        return shades, [(f"{100 * low:.0f} % positive", _shade(0.0)), (f"{100 * high:.0f} %", _shade(1.0))]
    column = drawn.get("group") if any(drawn.get("group") or []) else drawn.get("label")
    names = [name for name, _ in Counter(name for name in column or [] if name is not None).most_common(NAMED)]
    color_of = {name: GROUP_COLORS[place % len(GROUP_COLORS)] for place, name in enumerate(sorted(names))}
    legend = [(str(name), color) for name, color in color_of.items()]
    return [color_of.get(name, OTHER_COLOR) for name in column or [None] * len(drawn["tsne"])], [
        *legend,
        ("others", OTHER_COLOR),
    ]


def _shade(share: float) -> str:
    """From light blue to dark red."""
    ends = ((165, 200, 235), (150, 20, 30))
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in zip(*ends, strict=True))
