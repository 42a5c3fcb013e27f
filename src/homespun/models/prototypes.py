"""Prototypes that attract and repel personal embeddings (FedEmbed, section 3.3.2): triplet loss and server rule."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from homespun.core.messages import ServerState, Update
from homespun.core.method import Batch, Predict
from homespun.core.server import ServerRule
from homespun.core.tree import Tree


def triplet(predict: Predict, parameters: Tree, batch: Batch, *, kinds: int, margin: float) -> Tensor:
    """Equation 1 as a hinge, for every example that is liked: the mean over the negative prototypes.

    Row r of the prototypes likes kind r mod `kinds`; of several rows of a kind, the nearest one attracts.
    """
    embedding, prototypes = parameters["user.embedding"], parameters["places.prototypes"]
    distance = (embedding[..., None, :] - prototypes).square().sum(dim=-1)  # [..., prototypes]
    likes = torch.arange(prototypes.shape[-2], device=prototypes.device) % kinds
    positive = batch["kind"][..., None] == likes  # [..., examples, prototypes]
    far = distance[..., None, :].expand(positive.shape)
    attracts = far.masked_fill(~positive, torch.inf).min(dim=-1, keepdim=True).values
    hinge = (attracts - far + margin).clamp(min=0).masked_fill(positive, 0)
    mean = hinge.sum(dim=-1) / (~positive).sum(dim=-1).clamp(min=1)
    return mean * batch["label"]


@dataclass(frozen=True)
class PrototypeRule:
    """`rule` for all parameters that clients train; the prototypes become the embeddings of the prototypical users."""

    rule: ServerRule

    def __call__(self, state: ServerState, update: Update) -> ServerState:
        prototypes = update.statistics.get("places.prototypes", state.server["places.prototypes"])
        return replace(self.rule(state, update), server={"places.prototypes": prototypes})
