"""Rows of a corpus with their locations, and the faults found in them.

Reading continues after a fault, so that one pass finds all faults of a file. Faults name the location, never the
content.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from homespun.core.errors import DataError, raise_faults

SHOWN_FAULTS = 20


class Record(NamedTuple):
    place: str
    values: Mapping[str, Any]


class Number(str):
    """A number of a JSON file, spelled as in the file."""


class Faults:
    """The faults of one file: messages for the first `SHOWN_FAULTS`, a count for the rest."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.count = 0

    def add(self, fault: str) -> None:
        self.count += 1
        if self.count <= SHOWN_FAULTS:
            self.shown.append(fault)

    def merge(self, others: Faults) -> None:
        for fault in others.shown:
            self.add(fault)
        self.count += others.count - len(others.shown)

    def raise_if_any(self, where: str) -> None:
        if not self.count:
            return
        if self.count == len(self.shown):
            raise_faults(DataError, where, self.shown)
        shown = "\n".join(f"  - {fault}" for fault in self.shown)
        more = self.count - len(self.shown)
        raise DataError(f"{where}: {self.count} faults:\n{shown}\n  and {more} more.")
