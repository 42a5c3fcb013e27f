"""Selective masking (Ji et al., 2020): a client sends only the largest changes of each parameter.

The other changes count as zero in the server's average. A sent change is a number and its position.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from homespun.core.messages import Broadcast, Update
from homespun.core.transforms import UpdateTransform

POSITION_BYTES = 4


@dataclass(frozen=True)
class LargestChanges(UpdateTransform):
    """Keeps the share of each federated parameter's changes that are largest in absolute value.

    Example:
        >>> LargestChanges(0.5).mask({"w": torch.tensor([1.0, -3.0, 2.0, 0.5])})["w"].tolist()
        [0.0, -3.0, 2.0, 0.0]
    """

    share: float

    def mask(self, federated: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: self._largest(value) for name, value in federated.items()}

    def on_client(self, update: Update, broadcast: Broadcast, user: str) -> Update:
        return replace(update, federated=self.mask(update.federated))

    def bytes_sent(self, update: Update, sent: dict[str, int]) -> dict[str, int]:
        """`sent` covers one or several clients: each of its dense values becomes the kept share of them, with
        positions, unless that is larger than the dense values."""
        values = list(update.federated.values())
        if not all(isinstance(one, Tensor) for one in values):  # a malformed update, which is rejected
            return sent
        dense = sum(one.numel() * one.element_size() for one in values)
        sparse = sum(self._count(one) * (one.element_size() + POSITION_BYTES) for one in values)
        return {**sent, "federated": sent["federated"] * min(sparse, dense) // max(dense, 1)}

    def _count(self, value: Tensor) -> int:
        return min(value.numel(), math.ceil(self.share * value.numel()))

    def _largest(self, value: Tensor) -> Tensor:
        count = self._count(value)
        if count == value.numel():
            return value
        kept = value.abs().flatten().topk(count, sorted=False).indices
        out = torch.zeros_like(value).flatten()
        out[kept] = value.flatten()[kept]
        return out.view_as(value)
