"""The record of a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class RoundRecord:
    """What a run records about a round."""

    round: int  # rounds finished, including this one
    clients: int
    examples: int
    loss: float  # mean over the training examples, during training; NaN if it is not disclosed
    seconds: float  # NaN if it is not disclosed
    down_bytes: Mapping[str, int]  # by role, over the whole cohort
    up_bytes: Mapping[str, int]
    rejected: int = 0  # number of rejected updates

    def to_dict(self) -> dict[str, Any]:
        fields = asdict(self)
        fields["refused"] = fields.pop("rejected")  # its name in records on disk
        return {"kind": "round", **fields}
