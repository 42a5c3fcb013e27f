"""The same seed gives the same bits, whatever number of threads torch was given."""

import numpy as np
import pytest
import torch
from language_models import write_gpt2

from homespun.core import tree
from homespun.core.messages import state_to_bytes
from homespun.core.method import Task, build
from homespun.core.threads import one_thread
from homespun.data import load_federation
from homespun.data.federation import Examples
from homespun.engines.client import Client
from homespun.engines.cohort import CohortTrainer
from homespun.engines.loop import LoopTrainer
from homespun.runs.training import train
from homespun.system.method_loading import load_method

SPEECH = [f"My fellow citizens, state {place} of the union is strong, and stronger every day." for place in range(4)]
ENGINES = {
    "loop": lambda built: LoopTrainer(built, 0),
    "cohort": lambda built: CohortTrainer(built, 0, workers=0),
}


@pytest.fixture
def threads():
    """Sets torch's number of threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def fedperc():
    built = build(load_method("fedperc", {"length": 32, "local_steps": 1, "batch": 4}, Task(contexts=2)), seed=0)
    return built, Examples(SPEECH, contexts=np.array([0, 1, 0, 1]))


def furl():
    built = build(load_method("furl", {}, Task(classes=8, population=4)), seed=0)
    return built, load_federation("dialects", settings={"users": 4}).examples(0)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("method", [fedperc, furl])
def test_local_work_has_the_same_bits_with_one_thread_and_with_two(threads, method, engine):
    def found(count):
        threads(count)
        built, examples = method()
        client = Client("ann", built.new_private("ann", seed=0), built.method.model.encode(examples))
        start = built.start().broadcast()
        trained, alone = (engine(built).train(start, [client], mode=mode) for mode in ("round", "personalize"))
        rows = {f"rows of {name}": rows.values for name, rows in trained.update.keyed.items()}
        (output,) = engine(built).predict(start, [client])
        assert torch.get_num_threads() == count  # it is the caller's again
        return [
            tree.to_bytes(one)
            for one in (
                trained.update.federated,
                rows,
                trained.private["ann"],
                alone.private["ann"],
                {"output": output},
            )
        ]

    assert found(1) == found(2)


@pytest.mark.parametrize("method", ["fedembed", "pfedkm"])
def test_whole_rounds_have_the_same_bits_too(threads, method):
    """With the server's rule and the users it holds itself."""

    def trained(count):
        threads(count)
        corpus = load_federation("digits", settings={"users": 40})
        with train(method, corpus, rounds=1, cohort=20, workers=0, evaluate_users=10) as run:
            private = {user: run.vault.export(user) for user in run.vault.users()}
            history = [{key: entry[key] for key in entry if key != "seconds"} for entry in run.history()]
            return state_to_bytes(run.state), private, history

    assert trained(1) == trained(2)


def test_one_thread_is_given_back_after_an_error(threads):
    threads(2)
    with pytest.raises(ZeroDivisionError), one_thread():
        assert torch.get_num_threads() == 1
        _ = 1 / 0
    assert torch.get_num_threads() == 2


@pytest.mark.system
def test_workers_give_the_bits_of_work_in_this_process(threads, tmp_path):
    base = str(write_gpt2(tmp_path / "gpt2", width=64))
    settings = {"base_model": base, "length": 32, "local_steps": 2, "batch": 4}
    built = build(load_method("fedperc", settings, Task(contexts=2)), seed=0)
    data = built.method.model.encode(Examples(SPEECH, contexts=np.array([0, 1, 0, 1])))
    clients = [Client(user, built.new_private(user, seed=0), data) for user in ("ann", "bob", "cem")]
    threads(2)
    here, there = (
        CohortTrainer(built, 0, workers=workers).train(built.start().broadcast(), clients) for workers in (0, 1)
    )
    assert tree.to_bytes(here.update.federated) == tree.to_bytes(there.update.federated)
    assert {user: tree.to_bytes(own) for user, own in here.private.items()} == {
        user: tree.to_bytes(own) for user, own in there.private.items()
    }
