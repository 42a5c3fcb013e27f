"""The benchmark w4 trains the model of its reference."""

import sys
from pathlib import Path

import pytest

from homespun.core.method import Task, build
from homespun.core.roles import Role
from homespun.models.vocabulary import Vocabulary
from homespun.system.method_loading import load_method


@pytest.fixture
def w4(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    before = set(sys.modules)
    import w4

    yield w4
    for name in {"w4", "reference_w4", "alternating", "rounds"} - before:
        sys.modules.pop(name, None)


def test_the_method_has_the_parameters_of_the_reference(w4, tmp_path):
    w4.save_base(tmp_path / "model", Vocabulary(("yes", "no")))
    settings = w4.method_settings(tmp_path / "model", dropout=0.0)
    built = build(load_method("fednlg", settings, Task(population=3)), seed=0)
    ours = {name: tuple(built.initial[name].shape) for name in built.partition.names(Role.FEDERATED)}
    start = w4.reference.make_start()
    assert ours == {w4.our_name(name): tuple(value.shape) for name, value in start.weights.items()}
    assert tuple(built.initial["persona.embedding"].shape) == tuple(start.personas.shape[1:])
    (phase,) = built.method.local.phases  # the reference takes one step for all parameters
    assert phase.optimizer_of("persona.embedding") == phase.optimizer_of("output.weight")
