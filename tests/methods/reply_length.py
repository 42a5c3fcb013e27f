"""A method that reads replies: it predicts how long a user's reply is from how long the prompt is.

The slope is shared, the offset is the user's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from homespun.core import settings as core_settings
from homespun.core.messages import Broadcast
from homespun.core.method import Batch, LocalTraining, Method, ModelSpec, Phase, Predict, Sgd, Task
from homespun.core.personalize import GradientSteps
from homespun.core.roles import Role
from homespun.core.scoring import Counts, Scoring
from homespun.core.tree import Tree
from homespun.core.words import words
from homespun.data.federation import Examples

RUN = {"split_by": "conversation"}


class Settings(core_settings.Settings):
    lr: float = 0.01
    """Learning rate."""


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(1))
        self.offset = nn.Parameter(torch.zeros(1))

    def forward(self, batch: Batch) -> Tensor:
        return self.slope * batch["prompt"] + self.offset


def encode(examples: Examples) -> Batch:
    assert examples.prompts is not None and None not in examples.prompts
    return {
        "prompt": torch.tensor([float(len(words(prompt or ""))) for prompt in examples.prompts]),
        "reply": torch.tensor([float(len(words(text))) for text in examples.texts]),
    }


def loss(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
    return (predict(parameters, batch) - batch["reply"]) ** 2


@dataclass(frozen=True)
class Squares(Scoring):
    offers = frozenset({"generate"})
    k_shot = (0, None)

    def score(self, data: Mapping[str, Tensor], output: Tensor) -> Counts:
        error = ((output - data["reply"]) ** 2).sum()
        return {"examples": np.array(len(output)), "error": np.array(float(error))}

    def summarize(self, counts: Sequence[Counts]) -> SquaredError:
        return SquaredError(tuple(int(one["examples"]) for one in counts), tuple(float(one["error"]) for one in counts))


@dataclass(frozen=True)
class SquaredError:
    user_examples: tuple[int, ...]
    user_errors: tuple[float, ...]

    @property
    def examples(self) -> int:
        return sum(self.user_examples)

    @property
    def headline(self) -> tuple[str, float]:
        return "squared error", sum(self.user_errors) / max(1, self.examples)

    def to_dict(self) -> dict[str, Any]:
        each = [error / max(1, count) for error, count in zip(self.user_errors, self.user_examples, strict=True)]
        return {
            "metric": "squared error",
            "value": self.headline[1],
            "users": len(each),
            "examples": self.examples,
            "user_mean": float(np.mean(each)),
            "user_worst_tenth": max(each),
            "user_values": each,
            "loss": self.headline[1],
        }


def method(settings: Settings, task: Task) -> Method:
    def new_private(generator: torch.Generator, _: Broadcast) -> dict[str, Tensor]:
        return {"offset": torch.zeros(1)}

    phase = Phase(trains={"*": Sgd(settings.lr)}, batch=4, epochs=1)
    return Method(
        name="reply_length",
        version=1,
        settings=settings,
        task=task,
        model=ModelSpec(
            build=Line,
            roles=[("slope", Role.FEDERATED), ("offset", Role.PRIVATE)],
            encode=encode,
            new_private=new_private,
            reads="replies",
        ),
        local=LocalTraining(loss, phases=(phase,)),
        personalize=GradientSteps((Phase(trains={"offset": Sgd(settings.lr)}, batch=4, epochs=5),)),
        scoring=Squares(),
    )
