"""A small method file with a stochastic loss: dropout at two sites."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from homespun.core import settings as core_settings
from homespun.core.draws import dropout
from homespun.core.method import ALL_EXAMPLES, LocalTraining, Method, ModelSpec, Phase, Sgd
from homespun.core.personalize import GradientSteps
from homespun.core.roles import Role
from homespun.evaluation.classification import LabelScoring
from homespun.methods.furl import encode, loss

DIM, HIDDEN = 6, 8


class Settings(core_settings.Settings):
    p: float = 0.5
    """Share of numbers that dropout sets to zero."""
    path: Literal["stacked", "sequential", "single step"] = "stacked"
    """Which code path of the cohort trainer it takes."""


class Network(nn.Module):
    """Mean character embedding, dropout, a hidden layer, dropout, labels."""

    def __init__(self, classes: int, population: int, p: float) -> None:
        super().__init__()
        self.p = p
        self.characters = nn.Parameter(torch.randn(128, DIM))
        self.user = nn.ParameterDict({"embedding": torch.zeros(DIM), "table": 0.1 * torch.randn(population, DIM)})
        self.hidden = nn.Parameter(torch.randn(DIM, HIDDEN) / 2)
        self.output = nn.Parameter(torch.randn(HIDDEN, classes) / 2)

    def forward(self, batch):
        return self._logits(dict(self.named_parameters()), batch, rows=lambda table, at: table[at])

    def _logits(self, own, batch, *, rows):
        real = (batch["text"] > 0)[..., None]
        read = (rows(own["characters"], batch["text"].long()) * real).sum(-2) / real.sum(-2).clamp(min=1)
        about = rows(own["user.table"], batch["author"]) + own["user.embedding"][..., None, :]
        x = dropout(read + about, batch.get("key"), p=self.p, site=0)
        x = dropout((x @ own["hidden"]).relu(), batch.get("key"), p=self.p, site=1)
        return x @ own["output"]


class Stacked(Network):
    takes_shared_weights = True

    def stacked(self, parameters, batch):
        def rows(table, at):
            if table.dim() == 2:
                return table[at]
            each = torch.arange(len(table), device=table.device)
            return table[each.view(-1, *[1] * (at.dim() - 1)), at]

        return self._logits(parameters, batch, rows=rows)


def method(settings: Settings, task) -> Method:
    joint = Phase(trains={"user.table": Sgd(0.5), "*": Sgd(0.5)}, batch=4, steps=5)
    own = Phase(trains={"user.embedding": Sgd(0.5)}, batch=ALL_EXAMPLES, steps=3)
    once = Phase(trains={"*": Sgd(0.5)}, batch=ALL_EXAMPLES, steps=1)
    kind = Network if settings.path == "sequential" else Stacked
    return Method(
        name="dropout",
        version=1,
        settings=settings,
        task=task,
        model=ModelSpec(
            build=lambda: kind(task.classes, task.population, settings.p),
            roles=[("user.embedding", Role.PRIVATE), ("user.table", Role.KEYED), ("*", Role.FEDERATED)],
            encode=lambda examples: encode(examples, length=24),
            new_private=lambda generator, _: {"user.embedding": 0.1 * torch.randn(DIM, generator=generator)},
            keys={"user.table": "author"},
        ),
        local=LocalTraining(
            loss, phases=(own, once) if settings.path == "single step" else (own, joint), stochastic=True
        ),
        personalize=GradientSteps((own,)),
        scoring=LabelScoring(task.classes),
    )
