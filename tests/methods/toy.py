"""A method that uses every extension point, in one file: nothing in `homespun` knows of it.

A linear reader of characters behind a dropout, and a private adapter whose width each client finds by a search. Its
updates are masked, its weights start from an artefact, and it is scored by whether the right label is among the best
two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from homespun.core import draws, seeds
from homespun.core import settings as core_settings
from homespun.core.messages import Broadcast, Update
from homespun.core.method import Artefact, Batch, LocalTraining, Method, ModelSpec, Phase, Predict, Sgd, Task
from homespun.core.personalize import Home, Personalization
from homespun.core.roles import Role
from homespun.core.scoring import Counts, Scoring
from homespun.core.transforms import UpdateTransform
from homespun.core.tree import Tree
from homespun.methods import furl

LENGTH, WIDTHS = 24, (1, 2, 4)


class Settings(core_settings.Settings):
    start: str = ""
    """File with the weights to start from. Not set: random ones."""
    p: float = 0.2
    """Dropout."""
    patience: int = 2
    """Steps without improvement after which a search stops."""


class Reader(nn.Module):
    def __init__(self, classes: int, *, p: float) -> None:
        super().__init__()
        self.p = p
        self.words = nn.Linear(LENGTH, classes)
        self.own = nn.ParameterDict({"adapter": torch.zeros(1, classes)})

    def forward(self, batch: Batch) -> Tensor:
        logits = self.words(batch["text"].float() / 256)
        logits = draws.dropout(logits, batch.get("key"), p=self.p, site=0)
        adapter = self.own["adapter"]  # [any width, classes]
        return logits + (logits @ adapter.T) @ adapter


@dataclass(frozen=True)
class Search(Personalization):
    """Tries several widths; each is trained step by step until the loss of held-out examples stops improving."""

    patience: int

    def __call__(self, home: Home) -> Tree:
        rows = torch.randperm(len(home.data["label"]), generator=home.generator)
        held, used = ({name: column[some] for name, column in home.data.items()} for some in (rows[::4], rows[1::4]))
        best, best_loss = home.parameters["own.adapter"], float("inf")
        for width in WIDTHS:
            tried = 0.1 * torch.randn(width, best.shape[1], generator=home.generator)
            for value, loss in self._steps(home, tried, used, held):
                if loss < best_loss:
                    best, best_loss = value, loss
        return {**home.parameters, "own.adapter": best}

    def _steps(self, home: Home, start: Tensor, used: Batch, held: Batch) -> Any:
        step, waited, lowest = Phase(trains={"own.adapter": Sgd(0.1)}, batch=8, steps=1), 0, float("inf")
        parameters: Tree = {**home.parameters, "own.adapter": start}
        while waited < self.patience and len(used["label"]):
            parameters = home.train([step], parameters, used)
            loss = float(home.losses(parameters, held).mean())
            waited, lowest = (0, loss) if loss < lowest - 1e-3 else (waited + 1, lowest)
            yield parameters["own.adapter"], loss


@dataclass(frozen=True)
class Mask(UpdateTransform):
    """Every client adds the same secret of the round; the server subtracts it from the sum."""

    def on_client(self, update: Update, broadcast: Broadcast, user: str) -> Update:
        return self._moved(update, broadcast, times=1.0)

    def on_server(self, total: Update, broadcast: Broadcast) -> Update:
        return self._moved(total, broadcast, times=-float(total.clients))

    def _moved(self, update: Update, broadcast: Broadcast, *, times: float) -> Update:
        secret = seeds.torch_generator(0, "mask", broadcast.round)
        masks = {name: torch.randn(value.shape, generator=secret) for name, value in sorted(update.federated.items())}
        return replace(
            update, federated={name: value + times * masks[name] for name, value in update.federated.items()}
        )


@dataclass(frozen=True)
class TopTwo(Scoring):
    offers = frozenset({"predict"})
    k_shot = (0, 5, None)

    def score(self, data: Mapping[str, Tensor], output: Tensor) -> Counts:
        hits = (output.topk(2, dim=1).indices == data["label"][:, None]).any(dim=1)
        return {"examples": np.array(len(hits)), "hits": np.array(int(hits.sum()))}

    def summarize(self, counts: Sequence[Counts]) -> TopTwoRate:
        return TopTwoRate(tuple(int(one["examples"]) for one in counts), tuple(int(one["hits"]) for one in counts))


@dataclass(frozen=True)
class TopTwoRate:
    user_examples: tuple[int, ...]
    user_hits: tuple[int, ...]

    @property
    def examples(self) -> int:
        return sum(self.user_examples)

    @property
    def value(self) -> float:
        return sum(self.user_hits) / max(1, self.examples)

    @property
    def headline(self) -> tuple[str, float]:
        return "top two", self.value

    def to_dict(self) -> dict[str, Any]:
        each = [hits / examples for hits, examples in zip(self.user_hits, self.user_examples, strict=True)]
        return {
            "metric": "top two",
            "value": self.value,
            "users": len(each),
            "examples": self.examples,
            "user_mean": float(np.mean(each)) if each else float("nan"),
            "user_worst_tenth": min(each, default=float("nan")),
            "user_values": each,
            "loss": float("nan"),
        }


SMALL: dict[str, Any] = {}


def loss(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
    return furl.loss(predict, parameters, batch)


def method(settings: Settings, task: Task) -> Method:
    path = Path(settings.start)
    fingerprint = hashlib.sha256(path.read_bytes()).hexdigest() if settings.start else ""

    def build() -> nn.Module:
        reader = Reader(task.classes, p=settings.p)
        if settings.start:
            reader.load_state_dict(load_file(path), strict=False)
        return reader

    def new_private(generator: torch.Generator, _: Broadcast) -> dict[str, Tensor]:
        width = WIDTHS[int(torch.randint(len(WIDTHS), (), generator=generator))]
        return {"own.adapter": 0.1 * torch.randn(width, task.classes, generator=generator)}

    return Method(
        name="toy",
        version=1,
        settings=settings,
        task=task,
        model=ModelSpec(
            build=build,
            roles=[("own.*", Role.PRIVATE), ("words.*", Role.FEDERATED)],
            encode=lambda examples: furl.encode(examples, length=LENGTH),
            new_private=new_private,
            private_varies=True,
        ),
        local=LocalTraining(
            loss,
            phases=(Phase(trains={"*": Sgd(0.1)}, batch=8, epochs=1, clip_norm=5.0),),
            stochastic=True,
        ),
        personalize=Search(settings.patience),
        scoring=TopTwo(),
        transforms=(Mask(),),
        artefacts=(Artefact("start", settings.start, fingerprint, kind="start"),) if settings.start else (),
    )
