"""Where embeddings are: the nearest of some places, and a line of nodes that learns where to be (Kohonen, 1990)."""

from __future__ import annotations

import torch
from torch import Tensor


def nearest(embedding: Tensor, places: Tensor) -> Tensor:
    """The number of the place that is nearest to each embedding: [..., d] and [..., k, d] -> [...]."""
    return (embedding[..., None, :] - places).square().sum(dim=-1).argmin(dim=-1)


def map_step(embedding: Tensor, nodes: Tensor, *, radius: Tensor, rate: float) -> Tensor:
    """Kohonen's step: the nearest node and its neighbours on the line move towards the embedding."""
    place = torch.arange(len(nodes))
    near = torch.exp(-(place - nearest(embedding, nodes)).square() / (2 * radius.square()))
    return rate * near[:, None] * (embedding - nodes)
