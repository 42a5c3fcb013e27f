"""`import homespun`: every public name has a docstring with an example that works, and nothing prints its weights."""

import doctest
import importlib
import inspect
from dataclasses import replace

import pytest
import torch

import homespun

API = importlib.import_module("homespun.api")
SLOW = {"check_method", "generate"}


def test_dir_lists_the_public_names():
    assert {"Method", "Phase", "Role", "Update", "UpdateTransform", "Scoring", "check_method", "train"} <= set(
        dir(homespun)
    )
    assert set(dir(homespun)) == {*homespun.__all__, "__version__"}
    assert {name for name in vars(API) if not name.startswith("_")} >= set(homespun.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Methd'"):
        homespun.Methd  # noqa: B018


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.system if name in SLOW else ()) for name in homespun.__all__]
)
def test_the_example_of_a_public_name_works(name):
    documented = inspect.getdoc(getattr(homespun, name)) or ""
    assert ">>>" in documented, f"{name} has no example"
    globals_ = {**{one: getattr(homespun, one) for one in homespun.__all__}, "torch": torch, "replace": replace}
    example = doctest.DocTestParser().get_doctest(documented, globals_, name, None, 0)
    printed: list[str] = []
    failed, _ = doctest.DocTestRunner(verbose=False).run(example, out=printed.append)
    assert failed == 0, "".join(printed)


def test_reprs_are_short():
    federation = homespun.load("dialects", users=12)
    with homespun.train("fedavg", federation, rounds=1, workers=0) as run:
        for value in (federation, run.newcomers, run, run.method, run.built, run.state, run.state.broadcast()):
            shown = repr(value)
            assert len(shown) < 200 and "tensor" not in shown, shown
