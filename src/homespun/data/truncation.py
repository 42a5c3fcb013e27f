"""How many texts of a corpus a method truncates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from homespun.data.federation import Federation
from homespun.data.splits import sample_users

if TYPE_CHECKING:  # imports torch, which `homespun data check` does not need
    from homespun.core.method import Window

USERS, TEXTS = 1000, 20_000  # size of the sample


@dataclass(frozen=True)
class Truncation:
    """The share of texts that are longer than a method's window."""

    share: float
    exact: bool  # whether all texts were measured instead of a sample
    setting: str
    length: int
    unit: str

    def __str__(self) -> str:
        percent = f"{100 * self.share:.0f} %" if self.share >= 0.01 or not self.share else "less than 1 %"
        return (
            f"{'' if self.exact else 'about '}{percent} of the texts are longer than {self.setting} = {self.length} "
            f"{self.unit} and are truncated"
        )


def measure_truncation(federation: Federation, window: Window, *, users: int = USERS, texts: int = TEXTS) -> Truncation:
    """Measure an evenly spaced sample of texts, the same share of every sampled user's. Users are weighted by their
    number of texts."""
    positions = sample_users(federation, at_most=users, seed=0)
    owned = [own for position in positions if (own := federation.examples(position).texts)]
    total = sum(map(len, owned))
    share = min(1.0, texts / max(1, total))
    cut = 0.0
    for own in owned:
        rows = np.linspace(0, len(own) - 1, max(1, round(share * len(own)))).round().astype(np.int64)
        sizes = np.asarray(window.sizes([own[row] for row in rows]))
        cut += len(own) * float(np.mean(sizes > window.length))
    exact = share == 1 and len(positions) == len(federation.users)
    return Truncation(cut / max(1, total), exact, window.setting, window.length, window.unit)
