"""The DP mechanism as a transform: clients clip, and the server or each client adds noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import nan, sqrt
from typing import Any

from torch import Tensor

from homespun.core.messages import Broadcast, Update
from homespun.core.records import RoundRecord
from homespun.core.transforms import (
    NUMBER_BYTES,
    Transforms,
    UpdateTransform,
    broadcast_bytes,
    row_bytes,
    statistic_bytes,
)
from homespun.core.tree import byte_count
from homespun.privacy.account import ReleaseAccount
from homespun.privacy.mechanism import (
    Clip,
    clipped,
    clipped_metrics,
    clipped_sum,
    in_types_of,
    noised,
    released_centrally,
)
from homespun.privacy.noise import Normal, secure_normal, seeded_normal


@dataclass(frozen=True)
class DpMechanism(UpdateTransform):
    """User-level differential privacy of updates: each client's update is clipped, and noise is added to the sum
    (central) or, with `local`, by each client to its own update.

    `account` debits the ledger and exists only on the server. Without it, nothing is debited.
    """

    clip: Clip
    noise_multiplier: float = 0.0  # standard deviation of the noise, in clip norms
    local: bool = False
    expected: float = 0.0  # mean number of clients per round
    insecure_seed: int | None = None  # None: noise from the operating system's random numbers
    account: ReleaseAccount | None = None

    equal_clients = True
    hides_cohort = True

    def before_round(self, broadcast: Broadcast) -> None:
        if self.account is not None:
            self.account.open()
            if self.local:  # a noisy update is released when it leaves the client
                self.account.debit(broadcast.round)

    def on_client(self, update: Update, broadcast: Broadcast, user: str) -> Update:
        short = clipped(update, self.clip)
        if not self.local:
            return short
        normal = self._normal("local", broadcast.round, user)
        return noised(short, broadcast, self.clip, noise_multiplier=self.noise_multiplier, normal=normal)

    @property
    def sums_clients(self) -> bool:
        return not self.local  # with local noise, each client adds its own

    def on_clients(
        self, gradients: Mapping[str, Tensor], metrics: Mapping[str, Tensor], *, scale: Mapping[str, float]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return clipped_sum(gradients, self.clip, times=scale), clipped_metrics(metrics, self.clip.metrics)

    def on_server(self, total: Update, broadcast: Broadcast) -> Update:
        """The noisy sum of the cohort, with the standard deviations of its noise."""
        names = [*total.federated, *total.keyed, *total.statistics]
        deviations = self.clip.deviations(names, noise_multiplier=self.noise_multiplier)
        if self.local:
            noise = {name: sqrt(total.clients) * one for name, one in deviations.items()}
            return replace(in_types_of(broadcast, total), noise=noise)
        if self.account is not None:
            self.account.debit(broadcast.round)
        noisy = released_centrally(
            total,
            broadcast,
            self.clip,
            noise_multiplier=self.noise_multiplier,
            expected=self.expected,
            normal=self._normal("central", broadcast.round),
        )
        return replace(noisy, noise=deviations)

    def bytes_sent(self, update: Update, sent: dict[str, int]) -> dict[str, int]:
        """Weights are not sent, and metrics only if they are clipped."""
        return {**sent, "statistics": update.clients * self._statistics_bytes(update)}

    def disclosed(self, record: RoundRecord, broadcast: Broadcast, update: Update) -> RoundRecord:
        """Remove what reveals how many clients took part or failed: time, rejections and, with central noise, bytes."""
        loss = nan if self.clip.metrics is None else record.loss
        record = replace(record, seconds=nan, rejected=0, loss=loss)
        if self.local:
            return record
        clients = round(self.expected)
        rows = sum(row_bytes(table, rows=len(table)) for table in broadcast.keyed.values())
        up_bytes = {
            "federated": clients * byte_count(broadcast.federated),
            "keyed": clients * rows,  # all rows have noise
            "statistics": clients * self._statistics_bytes(update),
            "private": 0,
        }
        return replace(record, up_bytes=up_bytes, down_bytes=broadcast_bytes(broadcast, clients=clients))

    def to_dict(self) -> dict[str, Any]:
        """The client's part, from which a worker process rebuilds the mechanism."""
        return asdict(replace(self, account=None))

    def _statistics_bytes(self, update: Update) -> int:
        """Of one client."""
        return statistic_bytes(update) + (0 if self.clip.metrics is None else NUMBER_BYTES * len(update.metrics))

    def _normal(self, purpose: str, *parts: int | str) -> Normal:
        return secure_normal if self.insecure_seed is None else seeded_normal(self.insecure_seed, purpose, *parts)


def dp_from_dict(values: Mapping[str, Any]) -> DpMechanism:
    return DpMechanism(**{**values, "clip": Clip(**values["clip"])})


def dp_of(transforms: Transforms) -> DpMechanism | None:
    """The DP mechanism of a chain, if it has one."""
    return next((one for one in transforms.chain if isinstance(one, DpMechanism)), None)
