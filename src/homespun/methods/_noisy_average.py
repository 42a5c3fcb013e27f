"""The paper's prior of FedPerC: a noisy average of all personal embeddings, which the server keeps.

Each client uploads its step away from the current average, clipped and noised; the average moves by their mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from homespun.core.messages import ServerState, Update
from homespun.core.server import ServerRule
from homespun.core.statistics import Sum
from homespun.core.tree import Tree


def noisy_average(*, clip: float, noise: float) -> Sum:
    """The statistic that clients upload."""

    def step(trained: Tree, generator: torch.Generator) -> Tensor:
        own, average = trained["personal.embedding"], trained["prior.embedding"]
        clipped = (own - average) * (clip / (own - average).norm().clamp(min=1e-12)).clamp(max=1)
        return clipped + noise * torch.randn(own.shape, generator=generator)

    return Sum(step, "personal embedding, clipped and noised")


@dataclass(frozen=True)
class AverageRule:
    """`rule` for all parameters that clients train; the prior moves by the mean of the clients' steps."""

    rule: ServerRule

    def __call__(self, state: ServerState, update: Update) -> ServerState:
        following = self.rule(state, update)
        step = update.statistics["prior.embedding"] / max(update.weight, 1.0)
        return replace(following, server={"prior.embedding": state.server["prior.embedding"] + step})
