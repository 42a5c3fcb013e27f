"""Figures of OOV Expansion as SVG files: its figure 1, and figures 3 to 5 in one."""

from __future__ import annotations

from collections.abc import Sequence

from figures import LINE_COLORS, MARGIN, ROW, WIDTH, drawing, text_at

from homespun.evaluation.intervals import Estimate
from homespun.evaluation.next_word_intervals import share
from homespun.report.next_word_systems import System
from homespun.report.next_word_tables import SHOWN

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
