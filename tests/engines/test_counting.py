"""Every trainer counts finished clients."""

import pytest
import torch

from homespun.core.method import Task, build
from homespun.data import load_federation
from homespun.engines.client import Client
from homespun.engines.cohort import CohortTrainer
from homespun.engines.loop import LoopTrainer
from homespun.methods.furl import SMALL
from homespun.system.method_loading import load_method


@pytest.mark.parametrize(
    "engine",
    [
        lambda built: LoopTrainer(built, 0),
        lambda built: CohortTrainer(built, 0, workers=0),
        pytest.param(lambda built: CohortTrainer(built, 0, workers=1), marks=pytest.mark.system),
    ],
    ids=["loop", "cohort", "workers"],
)
def test_every_client_counts_once(engine):
    federation = load_federation("dialects", settings={"users": 60, "examples": 10})
    method = load_method("furl", SMALL, Task(classes=len(federation.labels), population=60))
    built = build(method, seed=0)
    clients = [
        Client(
            federation.users[position],
            private={"user.embedding": torch.zeros(SMALL["user_dim"])},
            data=method.model.encode(federation.examples(position)),
        )
        for position in range(60)
    ]
    trainer, broadcast, counts = engine(built), built.start().broadcast(), []
    trainer.predict(broadcast, clients, done=counts.append)
    assert sum(counts) == 60 and len(counts) > 1
    counts.clear()
    trainer.train(broadcast, clients, done=counts.append)
    assert sum(counts) == 60 and len(counts) > 1
