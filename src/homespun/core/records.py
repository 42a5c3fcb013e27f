"""What is recorded of a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class RoundRecord:
    """What is known of a round afterwards."""

    round: int  # rounds done, this one included
    clients: int
    examples: int
    loss: float  # mean over the examples trained on, as they were met; NaN where it is not disclosed
    seconds: float  # NaN where it is not disclosed
    down_bytes: Mapping[str, int]  # by role, the whole cohort
    up_bytes: Mapping[str, int]
    refused: int = 0  # updates that were not taken

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "round", **asdict(self)}
