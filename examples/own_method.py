"""FedPer: federated learning with personalization layers (Arivazhagan, Aggarwal, Singh and Choudhary, 2019).

All clients share the lower layers of a network (the base); each client has its own upper layers. A round: every client
trains both on its own examples, uploads the base and keeps its own layers.

    homespun check examples/own_method.py
    homespun train examples/own_method.py --data dialects --set rounds=20 --set withheld=0.1

| paper | here |
|---|---|
| W_B, base layers | `base.*`, FEDERATED |
| W_P, personalization layers of client j | `head.*`, PRIVATE |
| SGD with E epochs and batches of b, learning rate eta | `local_epochs`, `batch`, `lr` |
| gamma_j, the client's share of all examples | `LocalTraining.client_weight`, the number of examples |

Deviation 1: the paper's networks read images; this one reads texts as counts of hashed words.
"""

import zlib

import torch
from torch import nn
from torch.nn import functional

import homespun
from homespun import GradientSteps, LabelScoring, LocalTraining, Method, ModelSpec, Phase, Role, Sgd

WORDS = 512  # counters; two words may share one


class Settings(homespun.Settings):
    hidden: int = 64
    """Units of the base layer."""
    local_epochs: int = 4
    """Passes over a client's examples in a round."""
    batch: int = 8
    """Examples in a local batch."""
    lr: float = 0.1
    """Learning rate of local SGD."""


SMALL = {"hidden": 8, "local_epochs": 1}  # for `homespun check`


def encode(examples):
    """Texts to tensors. Every tensor has one row for each example."""
    counts = torch.zeros(len(examples), WORDS)
    for row, text in enumerate(examples.texts):
        for word in text.lower().split():
            counts[row, zlib.crc32(word.encode()) % WORDS] += 1
    batch = {"counts": counts}
    if examples.labels is not None:  # a user who asks for predictions has none
        batch["label"] = torch.as_tensor(examples.labels, dtype=torch.int64)
    return batch


class Network(nn.Module):
    def __init__(self, hidden, classes):
        super().__init__()
        self.base = nn.Linear(WORDS, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, batch):
        return self.head(self.base(batch["counts"]).relu())


def loss(predict, parameters, batch):
    """One value for each example."""
    return functional.cross_entropy(predict(parameters, batch), batch["label"], reduction="none")


def method(settings, task):
    def build():
        return Network(settings.hidden, task.classes)

    def new_private(generator, broadcast):
        """Where a new user's own layers start: small random weights of their own."""
        weight = 0.1 * torch.randn(task.classes, settings.hidden, generator=generator)
        return {"head.weight": weight, "head.bias": torch.zeros(task.classes)}

    both = Phase(trains={"*": Sgd(settings.lr)}, batch=settings.batch, epochs=settings.local_epochs)
    own = Phase(trains={"head.*": Sgd(settings.lr)}, batch=settings.batch, epochs=settings.local_epochs)
    return Method(
        name="fedper",
        version=1,
        settings=settings,
        task=task,
        model=ModelSpec(
            build=build,
            roles=[("base.*", Role.FEDERATED), ("head.*", Role.PRIVATE)],
            encode=encode,
            new_private=new_private,
        ),
        local=LocalTraining(loss, phases=(both,)),
        personalize=GradientSteps((own,)),
        scoring=LabelScoring(task.classes),
    )
