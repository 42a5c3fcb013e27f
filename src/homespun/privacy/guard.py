"""What happens to an update at home, before it leaves: clipped, and with local noise noised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from homespun.core.messages import Broadcast, Update
from homespun.privacy.mechanism import Clip, clipped, noised
from homespun.privacy.noise import secure_normal, seeded_normal


@dataclass(frozen=True)
class Guard:
    clip: Clip
    local_noise: float | None = None  # multiplier; None: the server adds noise to the sum
    insecure_seed: int | None = None

    def shaped(self, update: Update, broadcast: Broadcast, user: str) -> Update:
        short = clipped(update, self.clip)
        if self.local_noise is None:
            return short
        seed = self.insecure_seed
        normal = secure_normal if seed is None else seeded_normal(seed, "local", broadcast.round, user)
        return noised(short, broadcast, self.clip, noise_multiplier=self.local_noise, normal=normal)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def guard_from(values: Mapping[str, Any] | None) -> Guard | None:
    return None if values is None else Guard(**{**values, "clip": Clip(**values["clip"])})
