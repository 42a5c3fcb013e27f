"""FURL: Federated User Representation Learning (Bui et al., 2019).

Parameters are split into federated ones (w_f: characters, BiLSTM, MLP) and private ones (w_p^i: the embedding of user
i). A client trains both jointly. The server averages the deltas of the federated ones (section 3.4),

    w_f <- w_f + sum_i c_i d_i / sum_i c_i                                                  (Eq. 5)

and the private ones stay on the client: w_p^i <- w_p^i + z_i d_p^i, with z_i = 1           (Eq. 7)
or, if they went through the server's average, z_i = c_i / sum_j c_j                        (Eq. 6).

| paper | here |
|---|---|
| c_i, the number of training examples | `LocalTraining.client_weight` |
| d_i, the delta of local training | `Update.federated` |
| z_i = 1 or c_i / sum c | `private_update = "all"` or `"share"` |
| user embedding, on the client | `users = "private"`: `user.embedding`, PRIVATE |
| user embedding, in the server's table | `users = "table"`: a row of `user.table`, KEYED |

Deviations and readings, numbered as in docs/methods/furl.md, which has the reasons and those of the experiments:
2. Sizes and learning rates are not in the paper, except the size of the embedding.
3. A new embedding is normal with standard deviation 0.1. The paper says "a default value".
4. Two classes are a softmax of two.
6. Text is ASCII, cut at a fixed length; other characters are read as a question mark.
7. The MLP has one hidden layer with ReLU. It reads the BiLSTM's final states, or their maximum over the text.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from homespun.core import settings as core_settings
from homespun.core.messages import Broadcast
from homespun.core.method import Batch, LocalTraining, Method, ModelSpec, Phase, Predict, Sgd, Task, Window
from homespun.core.personalize import GradientSteps
from homespun.core.roles import Role, Rules
from homespun.core.server import RowDenominator, ServerName, ServerRule, rule_from_settings
from homespun.core.settings import Paper
from homespun.core.tree import Tree
from homespun.data.federation import Examples
from homespun.evaluation.classification import LabelScoring
from homespun.models.document import DocumentModel

CHARACTERS = 128  # ASCII; 0 is padding


class Settings(core_settings.Settings):
    added_later = ("server_weight_decay", "server_bias_correction")

    # The document model (figure 1)
    length: PositiveInt = 40
    """Characters of a text that are read; the rest is truncated."""
    character_dim: PositiveInt = 32
    """Size of a character's embedding."""
    lstm_dim: PositiveInt = 64
    """Cells of the LSTM in each direction."""
    pooling: Literal["final", "max"] = "final"
    """What the hidden layer reads: the BiLSTM's final states, or each state's maximum over the text."""
    hidden_dim: PositiveInt = 128
    """Units of the hidden layer."""
    users: Literal["private", "table", "none"] = "private"
    """Where user embeddings are stored: on the clients, in a table on the server, or there are none."""
    user_dim: Annotated[PositiveInt, Paper("4 (Sticker), 32 (Subreddit)")] = 32
    """Size of a user embedding."""
    user_scale: NonNegativeFloat = 0.1
    """Standard deviation of a new user embedding."""

    # Local training (section 4.1)
    local_epochs: Annotated[PositiveInt, Paper(1)] = 1
    """Passes over a client's training examples in a round."""
    batch: PositiveInt = 8
    """Examples in a local batch."""
    lr: NonNegativeFloat = 0.3
    """Learning rate of local SGD."""
    user_lr: NonNegativeFloat | None = None
    """Learning rate of the user embedding. Not set: the same as `lr`."""
    mu: NonNegativeFloat = 0.0
    """FedProx's mu, on the shared parameters."""

    # The server
    server: Annotated[ServerName, Paper("fedavg")] = "fedavg"
    """How the server applies the averaged update."""
    server_lr: PositiveFloat | None = None
    """Learning rate of the server. Not set: 1 for fedavg, 0.01 for fedadam."""
    server_weight_decay: NonNegativeFloat = 0.0
    """Weight decay of fedadam, subtracted from the averaged update. The published FedAdam has none."""
    server_bias_correction: bool = False
    """Whether fedadam corrects its moments for their start at zero. The published FedAdam does not."""
    private_update: Annotated[Literal["all", "share"], Paper("all")] = "all"
    """How much of its delta a private embedding keeps: all of it (equation 7), or the client's share of the round's
    weight (equation 6)."""

    # New users
    personalize_epochs: PositiveInt = 20
    """Passes over a new user's examples in personalization."""
    personalize_lr: NonNegativeFloat | None = None
    """Learning rate for a new user's embedding. Not set: the same as `user_lr`."""


# How the paper runs it (section 4.1)
PAPER_RUN = {"epochs": "30 (Sticker), 40 (Subreddit)", "cohort": 10}

# Sizes at which the contract is checked in seconds
SMALL = {"length": 24, "character_dim": 8, "lstm_dim": 12, "hidden_dim": 16, "user_dim": 6}


# The model


def encode(examples: Examples, *, length: int) -> Batch:
    """Characters as numbers, cut at `length`; a character outside ASCII is read as a question mark."""
    texts = [text[:length].encode("ascii", "replace").replace(b"\0", b"?") for text in examples.texts]
    codes = np.frombuffer(b"".join(text.ljust(length, b"\0") for text in texts), dtype=np.uint8)
    batch = {
        "text": torch.from_numpy(codes.reshape(len(texts), length).copy()),
        "length": torch.tensor([len(text) for text in texts], dtype=torch.int64),
    }
    if examples.labels is not None:
        batch["label"] = torch.from_numpy(np.asarray(examples.labels, dtype=np.int64))
    if examples.authors is not None:
        batch["author"] = torch.from_numpy(np.asarray(examples.authors, dtype=np.int64))
    return batch


def build_model(settings: Settings, task: Task) -> nn.Module:
    return DocumentModel(
        vocabulary=CHARACTERS,
        character_dim=settings.character_dim,
        lstm_dim=settings.lstm_dim,
        pooling=settings.pooling,
        hidden_dim=settings.hidden_dim,
        classes=task.classes,
        users=settings.users,
        user_dim=settings.user_dim,
        population=task.population,
    )


# Roles


def roles(users: str) -> Rules:
    shared = [(glob, Role.FEDERATED) for glob in ("characters.*", "lstm.*", "hidden.*", "output.*")]
    embedding = {"private": [("user.embedding", Role.PRIVATE)], "table": [("user.table", Role.KEYED)], "none": []}
    return [*embedding[users], *shared]


# Loss and local training


def loss(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
    """Cross-entropy of each example; any leading axes."""
    logits, label = predict(parameters, batch), batch["label"]
    return functional.cross_entropy(logits.flatten(0, -2), label.flatten(), reduction="none").view(label.shape)


def _user_lr(settings: Settings) -> float:
    return settings.lr if settings.user_lr is None else settings.user_lr


def _joint_phase(settings: Settings) -> Phase:
    """Federated and private parameters together."""
    embedding = {} if settings.users == "none" else {"user.*": Sgd(_user_lr(settings))}
    return Phase(
        trains={**embedding, "*": Sgd(settings.lr)},
        batch=settings.batch,
        epochs=settings.local_epochs,
        mu=settings.mu,
    )


def _personalization_phase(settings: Settings) -> Phase:
    """The embedding of a new user alone."""
    lr = _user_lr(settings) if settings.personalize_lr is None else settings.personalize_lr
    return Phase(trains={"user.embedding": Sgd(lr)}, batch=settings.batch, epochs=settings.personalize_epochs)


# The server


def _server(settings: Settings) -> ServerRule:
    # Averaged over its contributors, a user's row of the server's table moves as a private embedding with z = 1;
    # averaged over the cohort, as with z = c_i / sum c.
    rows: RowDenominator = "contributors" if settings.private_update == "all" else "cohort"
    return rule_from_settings(settings, row_denominator=rows)


# The method


def method(settings: Settings, task: Task) -> Method:
    private = settings.users == "private"

    def new_private(generator: torch.Generator, _: Broadcast) -> dict[str, Tensor]:
        if not private:
            return {}
        return {"user.embedding": settings.user_scale * torch.randn(settings.user_dim, generator=generator)}

    return Method(
        name="furl",
        version=1,
        settings=settings,
        task=task,
        model=ModelSpec(
            build=lambda: build_model(settings, task),
            roles=roles(settings.users),
            encode=lambda examples: encode(examples, length=settings.length),
            new_private=new_private,
            keys={"user.table": "author"} if settings.users == "table" else {},
            head=("output.*",),
            window=Window("length", settings.length, "characters", sizes=lambda texts: [len(text) for text in texts]),
        ),
        local=LocalTraining(loss, phases=(_joint_phase(settings),), private_update=settings.private_update),
        personalize=GradientSteps((_personalization_phase(settings),) if private else ()),
        scoring=LabelScoring(task.classes),
        server=_server(settings),
    )
