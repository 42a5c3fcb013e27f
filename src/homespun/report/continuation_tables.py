"""The same opening continued by several people: what a language method learned, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homespun.report.table_model import Cell, Column, Table, shorten, table

NEVER_USED = "never used"
NOBODY_SAID_THIS = "Drawn from the model: nobody said this."
LONGEST_TEXT = 400


def setting_text(context: str, *, used: bool) -> str:
    """A context, and that somebody has no examples in it."""
    return context if used else f"{context} ({NEVER_USED})"


def voice_tables(results: Mapping[str, Any]) -> list[Table]:
    """One for every opening, in the order in which they were drawn."""
    samples = (results.get("showcase") or {}).get("samples") or []
    openings = dict.fromkeys(sample["opening"] for sample in samples)
    columns = [Column("Who"), Column("Setting"), Column("Continues")]
    return [
        table(
            columns,
            [_row(sample) for sample in samples if sample["opening"] == opening],
            caption=f"{shorten(opening)} …".strip(),
        )
        for opening in openings
    ]


def _row(sample: Mapping[str, Any]) -> list[Cell]:
    setting = setting_text(shorten(sample["context"]), used=sample["used"])
    return [Cell(shorten(sample["user"])), Cell(setting), Cell(shorten(sample["text"], LONGEST_TEXT))]
