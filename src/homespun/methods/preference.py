"""Global and Global+, as FedEmbed compares itself with them (Silva et al., 2022, table 1).

One network for all users, trained by federated averaging: an encoder and one head that predicts whether an image is
liked. With `embedding = true` (Global+) every user also has a private personal embedding.

| paper | here |
|---|---|
| theta, the encoder | `encoder.*`, FEDERATED |
| the single model head | `head.*`, FEDERATED |
| e_u, the personal embedding (Global+) | `user.embedding`, PRIVATE |

A client uploads one gradient at the broadcast weights, and the server takes the step, as in algorithm 1 of the paper.

Deviations and readings: those of `fedembed` that concern its encoder, embedding and server (1, 2, 3, 10 and 16 in
docs/methods/fedembed.md), and 14 there.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor, nn
from torch.nn import functional

from homespun.core import settings as core_settings
from homespun.core.errors import SettingsError
from homespun.core.messages import Broadcast
from homespun.core.method import ALL_EXAMPLES, Adam, Batch, LocalTraining, Method, ModelSpec, Phase, Predict, Sgd, Task
from homespun.core.personalize import GradientSteps
from homespun.core.roles import Role, Rules
from homespun.core.server import FedAdam, FedAvg, RowDenominator, ServerName, equal_weight, rule_from_settings
from homespun.core.settings import Paper
from homespun.core.tree import Tree
from homespun.data.federation import Examples
from homespun.evaluation.classification import LabelScoring
from homespun.models.preference_network import PreferenceNetwork

EMBEDDING = {(28, 28): 28, (200, 375): 200}  # sizes of the personal embedding, appendix B


class PreferenceSettings(core_settings.Settings):
    """Settings shared by all methods over this network."""

    added_later = ("server_weight_decay", "server_bias_correction")

    embedding_dim: Annotated[NonNegativeInt | None, Paper("28 (MNIST), 200 (speech)")] = None
    """Size of a personal embedding. Not set: 28 for digits, 200 for speech."""
    embedding_scale: PositiveFloat = 0.1
    """A new embedding is drawn uniformly between minus and plus this value."""
    server: Annotated[ServerName, Paper("fedadam")] = "fedadam"
    """How the server applies the averaged gradient."""
    server_lr: Annotated[PositiveFloat | None, Paper(1)] = 0.01
    """Learning rate of the server."""
    server_weight_decay: NonNegativeFloat = 0.0
    """Weight decay of fedadam, subtracted from the averaged update. The published FedAdam has none."""
    server_bias_correction: bool = False
    """Whether fedadam corrects its moments for their start at zero. The published FedAdam does not."""
    personalize_steps: NonNegativeInt = 50
    """Gradient steps on a new user's embedding, in personalization."""

    def rule(self, row_denominator: RowDenominator) -> FedAvg | FedAdam:
        return rule_from_settings(self, row_denominator=row_denominator)


class Settings(PreferenceSettings):
    embedding: bool = False
    """Whether users have personal embeddings. true: the paper's Global+; false: Global."""
    embedding_lr: Annotated[NonNegativeFloat, Paper(0.001)] = 0.05
    """Learning rate of local Adam, for the personal embedding."""


SMALL = {"personalize_steps": 2}
CORPUS = {"source": "digits", "users": 20}  # for the contract tests
RUN = {"rounds": 200, "cohort": 100}


# The model


def encode(examples: Examples) -> Batch:
    """Images stay bytes until they are used: a user's take 16 kB instead of 63."""
    assert examples.images is not None
    columns = {"label": examples.labels, "kind": examples.contexts, "group": examples.groups}
    numbers = {
        name: torch.from_numpy(np.asarray(column, dtype=np.int64))
        for name, column in columns.items()
        if column is not None
    }
    return {"image": torch.from_numpy(np.ascontiguousarray(examples.images)), **numbers}


def embedding_size(settings: PreferenceSettings, task: Task, *, method: str) -> int:
    size = settings.embedding_dim
    if size is None:
        return EMBEDDING.get(task.image or (28, 28), 28)
    if task.image is not None and size > min(task.image):
        raise SettingsError(
            f"{method}: embedding_dim is {size}, but the diagonal of the image has only {min(task.image)} pixels. "
            f"Set embedding_dim to {min(task.image)} at most."
        )
    return size


def new_embedding(size: int, scale: float, generator: torch.Generator) -> dict[str, Tensor]:
    """Uniform, as in section 3.2."""
    return {"user.embedding": scale * (2 * torch.rand(size, generator=generator) - 1)}


# Loss


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of each example; any leading axes."""
    return functional.cross_entropy(logits.flatten(0, -2), target.flatten(), reduction="none").view(target.shape)


def loss(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
    return cross_entropy(predict(parameters, batch), batch["label"])


# The method


def method(settings: Settings, task: Task) -> Method:
    size = embedding_size(settings, task, method="preference") if settings.embedding else 0
    if settings.embedding and size == 0:
        raise SettingsError("preference: embedding_dim is 0. For Global, without embeddings, set embedding to false.")
    private = {"user.embedding": Adam(settings.embedding_lr)} if size else {}
    joint = Phase(trains={**private, "encoder.*": Sgd(1.0), "head.*": Sgd(1.0)}, batch=ALL_EXAMPLES, steps=1)
    personalization = Phase(trains=private, batch=ALL_EXAMPLES, steps=settings.personalize_steps)
    roles: Rules = [("encoder.*", Role.FEDERATED), ("head.*", Role.FEDERATED)]

    def build() -> nn.Module:
        assert task.image is not None
        return PreferenceNetwork(size=task.image, embedding=size, heads=None)

    def new_private(generator: torch.Generator, _: Broadcast) -> dict[str, Tensor]:
        return new_embedding(size, settings.embedding_scale, generator) if size else {}

    return Method(
        name="preference",
        version=1,
        settings=settings,
        task=task,
        model=ModelSpec(
            build=build,
            roles=[("user.embedding", Role.PRIVATE), *roles] if size else roles,
            encode=encode,
            new_private=new_private,
            head=("head.*",),
            reads="images",
        ),
        local=LocalTraining(loss, phases=(joint,), client_weight=equal_weight),
        personalize=GradientSteps((personalization,) if size else ()),
        scoring=LabelScoring(task.classes, "f1"),
        server=settings.rule("cohort"),
    )
