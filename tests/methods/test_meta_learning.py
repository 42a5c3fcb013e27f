"""Meta-Learning: one head for all users, and a fine-tuned copy on each client."""

import pytest
import torch
from language_models import write_gpt2

from homespun.core.messages import state_to_bytes
from homespun.core.method import Task, build
from homespun.core.roles import Role
from homespun.data.federation import Examples
from homespun.engines.client import Client
from homespun.engines.cohort import CohortTrainer
from homespun.system.method_loading import load_method

TEXTS = ["We must go on together, my fellow citizens.", "The people ask what the state of the union is."]
SMALL = {"length": 12, "local_steps": 3, "batch": 2, "personalize_steps": 5, "lr": 0.01}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    base = str(write_gpt2(tmp_path_factory.mktemp("base") / "model"))
    return build(load_method("meta_learning", {**SMALL, "base_model": base}, Task(contexts=3)), seed=0)


def client(built, user="ada", texts=TEXTS):
    return Client(user, private={}, data=built.method.model.encode(Examples(list(texts), labels=None)))


def test_only_the_head_is_shared_and_nothing_is_private(built):
    assert built.partition.names(Role.FEDERATED) == ("head.weight",)
    assert built.partition.names(Role.PRIVATE) == built.partition.names(Role.KEYED) == ()


def test_clients_have_equal_weight(built):
    engine, start = CohortTrainer(built, 0, workers=0), built.start()
    ada, ben = client(built), client(built, "ben", TEXTS[:1])
    alone = [engine.train(start.broadcast(), [one]).update.federated["head.weight"] for one in (ada, ben)]
    after = built.method.server(start, engine.train(start.broadcast(), [ada, ben]).update).federated["head.weight"]
    torch.testing.assert_close(after, start.federated["head.weight"] + (alone[0] + alone[1]) / 2)
    assert alone[0].any() and alone[1].any()


def test_fine_tuning_lowers_the_clients_loss_and_changes_nothing_shared(built):
    engine, state, ada = CohortTrainer(built, 0, workers=0), built.start(), client(built)
    before = state_to_bytes(state)
    outcome = engine.train(state.broadcast(), [ada], mode="personalize")
    assert state_to_bytes(state) == before
    assert outcome.update.clients == 0 and not outcome.update.federated["head.weight"].any()
    tuned = Client("ada", private=outcome.private["ada"], data=ada.data)
    (plain, own) = (engine.predict(state.broadcast(), [one])[0].mean() for one in (ada, tuned))
    assert own < plain - 0.01
