"""The wire check compares whole names: a private `bias` is not the shared `net.output.bias`."""

import pytest

from homespun.core.errors import MethodError
from homespun.testing.contract import check_method

pytestmark = pytest.mark.system  # each check trains for some seconds

# A linear model of the first characters: the weights are shared, a bias on top of theirs is the user's own.
BIASED = """
from dataclasses import replace

import torch
from torch import nn

from homespun.core.personalize import GradientSteps
from homespun.evaluation.classification import LabelScoring
from homespun.core.method import LocalTraining, Method, ModelSpec, Phase, Sgd
from homespun.core.roles import Role
from homespun.core.server import FedAvg
from homespun.core.settings import Settings as Base
from homespun.methods import furl


class Settings(Base):
    length: int = 8


class Biased(nn.Module):
    def __init__(self, length, classes):
        super().__init__()
        self.net = nn.ModuleDict({{"output": nn.Linear(length, classes)}})
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, batch):
        return self.net["output"](batch["text"].float() / 256) + self.bias


def server(state, update):
    moved = FedAvg()(state, update)
    return {server}


def method(settings, task):
    return Method(
        name="biased", version=1, settings=settings, task=task,
        model=ModelSpec(
            build=lambda: Biased(settings.length, task.classes),
            roles=[("bias", Role.PRIVATE), ("net.*", Role.FEDERATED)],
            encode=lambda examples: furl.encode(examples, length=settings.length),
            new_private=lambda generator, _: {{"bias": torch.randn(task.classes, generator=generator)}},
        ),
        local=LocalTraining(furl.loss, phases=(Phase(trains={{"*": Sgd(0.1)}}, batch=8, epochs=1),)),
        personalize=GradientSteps((Phase(trains={{"bias": Sgd(0.1)}}, batch=8, epochs=1),)),
        server=server, scoring=LabelScoring(task.classes),
    )
"""


def write(folder, *, server):
    path = folder / "biased.py"
    path.write_text(BIASED.format(server=server))
    return str(path)


def test_a_private_name_that_is_the_suffix_of_a_federated_one_is_not_a_leak(tmp_path):
    assert "wire" in check_method(write(tmp_path, server="moved")).passed


def test_a_private_name_in_a_message_is_a_leak(tmp_path):
    leaking = 'replace(moved, optimizer={"bias": torch.zeros(2)})'
    with pytest.raises(MethodError, match="- wire: the name bias is in a message"):
        check_method(write(tmp_path, server=leaking))
