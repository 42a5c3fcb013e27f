"""Figures of OOV Expansion as SVG files: its figure 1, with a table of OOV rates, and figures 3 to 5 in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor
from typing import Any

from figures import HEIGHT, LINE_COLORS, MARGIN, ROW, WIDTH, drawing, text_at

from homespun.evaluation.intervals import Estimate
from homespun.evaluation.next_word_intervals import share
from homespun.report.next_word_systems import System
from homespun.report.next_word_tables import SHOWN
from homespun.report.table_model import Column, Table, count_text, make_table, percent_text

BARS = ("emr3", "kemr3")
NAMES, GAP, VALUE = 230, 24, 44  # widths: of the names, between two panels, of a value after its bar
BEFORE = "#c3c9d2"  # of models before personalization


def bars(shown: Sequence[System]) -> str:
    """A row for each system and a panel for each score: bars from zero, with intervals over users."""
    found = {name: [share(one.counts, name) for one in shown] for name in BARS}
    most = max(max(one.value, one.high or 0) for scores in found.values() for one in scores if one)
    panel = (WIDTH - NAMES - GAP * len(BARS)) / len(BARS)
    height = MARGIN + ROW * len(shown)
    parts = [text_at(NAMES - 8, MARGIN + ROW * n + 4, one.title, anchor="end", size=11) for n, one in enumerate(shown)]
    for place, (name, scores) in enumerate(found.items()):
        left = NAMES + place * (panel + GAP)
        parts.append(text_at(left, 24, f"{SHOWN[name]}, %", size=13))
        parts.append(f'<path d="M{left:.1f} {MARGIN - ROW / 2}V{height - ROW / 2}" stroke="#888"/>')
        for row, (one, score) in enumerate(zip(shown, scores, strict=True)):
            if score is not None:
                y, color = MARGIN + ROW * row, LINE_COLORS[0] if one.key else BEFORE
                parts += _bar(score, left, y, scale=(panel - VALUE) / (most or 1), color=color)
    return drawing(WIDTH, height, parts)


def _bar(score: Estimate, left: float, y: float, *, scale: float, color: str) -> list[str]:
    """A bar from zero, its interval and, after both, its value."""
    width, high = scale * score.value, scale * max(score.value, score.high or 0)
    parts = [f'<rect x="{left:.1f}" y="{y - 7}" width="{width:.1f}" height="14" fill="{color}"/>']
    if score.low is not None and score.high is not None:
        low = left + scale * score.low
        parts.append(f'<path d="M{low:.1f} {y}H{left + high:.1f}" stroke="#222" stroke-width="1.5"/>')
        parts += [f'<path d="M{x:.1f} {y - 4}V{y + 4}" stroke="#222"/>' for x in (low, left + high)]
    return [*parts, text_at(left + high + 5, y + 4, f"{100 * score.value:.2f}", size=11)]


def word_frequencies(counted: Mapping[str, Any]) -> str:
    """The quantiles of how often the most frequent words of each corpus occur, on a logarithmic scale."""
    corpora = counted["corpora"]
    known = [value for one in corpora.values() for value in one["log10_per_million"]]
    low, high = floor(min(known)), ceil(max(known))
    left, right, top, bottom = MARGIN + 14, WIDTH - MARGIN, MARGIN, HEIGHT - MARGIN

    def across(quantile: float) -> float:
        return left + (right - left) * quantile / 100

    def up(value: float) -> float:
        return bottom - (bottom - top) * (value - low) / (high - low)

    parts = [
        text_at(
            MARGIN - 40, 20, f"Occurrences of the {count_text(counted['frequent'])} most frequent words in a million"
        ),
        *(f'<path d="M{left} {up(y):.1f}H{right}" stroke="#ddd"/>' for y in range(low, high + 1)),
        *(text_at(left - 6, up(y) + 4, f"{10.0**y:,g}", anchor="end", size=11) for y in range(low, high + 1)),
        *(text_at(across(x), bottom + 18, f"{x} %", anchor="middle", size=11) for x in range(0, 101, 25)),
        text_at(right, bottom + 38, "quantile of the words, from rare to frequent", anchor="end"),
    ]
    for number, (name, one) in enumerate(corpora.items()):
        color, values = LINE_COLORS[number % len(LINE_COLORS)], one["log10_per_million"]
        step = 100 / (len(values) - 1)
        points = " ".join(f"{across(place * step):.1f},{up(value):.1f}" for place, value in enumerate(values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<rect x="{left + 150 * number}" y="{MARGIN - 22}" width="14" height="4" fill="{color}"/>')
        parts.append(text_at(left + 150 * number + 20, MARGIN - 16, name, size=11))
    return drawing(WIDTH, HEIGHT, parts)


OWN = {"none": "{} words, %", "training": "with own words, %", "all": "with all own words, %"}


def oov_table(counted: Mapping[str, Any]) -> Table:
    """OOV rates by size of the vocabulary and by the own words that are known."""
    corpora, sizes = counted["corpora"], next(iter(counted["corpora"].values()))["oov"]
    rows = [
        [name, *(percent_text(one["oov"][size][own]) for size in sizes for own in OWN), count_text(one["tested"])]
        for name, one in corpora.items()
    ]
    columns = [
        Column("Corpus"),
        *(Column(title.format(count_text(int(size))), number=True) for size in sizes for title in OWN.values()),
        Column("Test words", number=True),
    ]
    users = ", ".join(
        f"{name} {count_text(one['users'])} users and {count_text(one['words'])} words" for name, one in corpora.items()
    )
    note = (
        "Tested are the words, punctuation included, in the last tenth of each user's texts. A vocabulary has the most "
        "frequent words of all users' texts before that. Shown is the share of words that it does not have; with own "
        f"words, that are not among the {count_text(counted['own_words'])} most frequent other words of the user in "
        "the texts before either; with all own words, in all texts, which a device cannot know. Whole corpora: "
        f"{users}."
    )
    return make_table(columns, rows, caption="Words outside the vocabulary", note=note)
