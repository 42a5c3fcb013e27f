"""A cohort trained as one gradient agrees with the loop, clipped or not, and rejects single clients."""

from dataclasses import replace

import pytest
import torch

from homespun.core import tree
from homespun.core.method import Task, build
from homespun.core.transforms import NO_TRANSFORMS, Transforms
from homespun.engines import single_step
from homespun.engines.client import Client
from homespun.engines.cohort import CohortTrainer
from homespun.engines.exchange import clients_from_tensors, clients_to_tensors
from homespun.engines.loop import LoopTrainer
from homespun.privacy.dp import DpMechanism
from homespun.privacy.mechanism import Clip
from homespun.system.method_loading import load_method

KINDS = 3
EXAMPLES = [5, 1, 7, 3, 6, 2]  # ragged
DIGIT, SPEECH = (28, 28), (200, 375)
CHAINS = {
    "no transforms": NO_TRANSFORMS,
    "clipped": Transforms((DpMechanism(Clip({"*": 0.5})),)),
    "in groups": Transforms((DpMechanism(Clip({"encoder.*": 0.3, "*": 5.0}, metrics=1.0)),)),
}


def make(assignment, size=DIGIT, **settings):
    task = Task(classes=2, population=12, contexts=KINDS, image=size)
    return build(load_method("fedembed", {"assignment": assignment, "own_steps": 2, **settings}, task), seed=0)


def make_clients(made, size=DIGIT):
    generator = torch.Generator().manual_seed(0)
    found = []
    for place, examples in enumerate(EXAMPLES):
        user = f"user {place}"
        data = {
            "image": torch.randint(256, (examples, *size), generator=generator, dtype=torch.uint8),
            "label": torch.randint(2, (examples,), generator=generator),
            "kind": torch.randint(KINDS, (examples,), generator=generator),
            "group": torch.full((examples,), place % KINDS),
        }
        found.append(Client(user, made.new_private(user, seed=0), data))
    return found


def test_shared_weights_without_a_client_axis_are_for_models_that_take_them(monkeypatch):
    made = make("type")
    clients = make_clients(made)
    assert single_step.can_take_single_step(made, clients)
    monkeypatch.setattr(type(made.model), "takes_shared_weights", False)
    assert not single_step.can_take_single_step(made, clients)


def differences(one, other):
    assert one.update.keyed.keys() == other.update.keyed.keys()
    found = {"federated": tree.max_abs_difference(one.update.federated, other.update.federated)}
    for name, rows in one.update.keyed.items():
        theirs = other.update.keyed[name]
        assert torch.equal(rows.index, theirs.index) and torch.equal(rows.weight, theirs.weight)
        found[name] = float((rows.values - theirs.values).abs().max())
    for user, private in one.private.items():
        found[user] = tree.max_abs_difference(private, other.private[user])
    return found


@pytest.fixture
def only_single_step(monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("the cohort was not trained as one gradient")

    monkeypatch.setattr(single_step, "train_clients", fail)


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("assignment", ["type", "prototype", "personal"])
@pytest.mark.usefixtures("only_single_step")
def test_single_step_equals_loop(assignment, chain):
    made, chain = make(assignment), CHAINS[chain]
    start, cohort = made.start().broadcast(), make_clients(made)
    slow = LoopTrainer(made, 0, chain).train(start, cohort)
    fast = CohortTrainer(made, 0, workers=0, transforms=chain).train(start, cohort)
    assert max(differences(slow, fast).values()) < 2e-5
    assert slow.update.metrics == pytest.approx(fast.update.metrics, rel=1e-5)
    assert (slow.update.weight, slow.update.clients) == (fast.update.weight, fast.update.clients)


@pytest.mark.parametrize("chain", ["no transforms", "clipped"])
@pytest.mark.parametrize(("assignment", "settings"), [("prototype", {}), ("type", {"embedding_dim": 5})])
@pytest.mark.usefixtures("only_single_step")
def test_single_step_of_speech_equals_loop(assignment, settings, chain):
    made, chain = make(assignment, SPEECH, **settings), CHAINS[chain]
    start, cohort = made.start().broadcast(), make_clients(made, SPEECH)[1:4]
    slow = LoopTrainer(made, 0, chain).train(start, cohort)
    fast = CohortTrainer(made, 0, workers=0, transforms=chain).train(start, cohort)
    assert max(differences(slow, fast).values()) < 5e-5


@pytest.mark.parametrize("chain", ["no transforms", "clipped"])
@pytest.mark.parametrize(
    ("size", "workers"), [(DIGIT, 0), (SPEECH, 0), pytest.param(DIGIT, 2, marks=pytest.mark.system)]
)
def test_only_the_client_with_nan_in_its_data_is_rejected(chain, size, workers):
    made, chain = make("type", size), CHAINS[chain]
    start = made.start().broadcast()
    cohort = [
        replace(client, data={**client.data, "image": client.data["image"].float()})
        for client in make_clients(made, size)
    ]
    broken = cohort[2]
    image = broken.data["image"].clone()
    image[0, 3, 3] = torch.nan
    spoiled = replace(broken, data={**broken.data, "image": image})
    engine = CohortTrainer(made, 0, workers=workers, transforms=chain)
    found = engine.train(start, [*cohort[:2], spoiled, *cohort[3:]])
    assert list(found.rejected) == [broken.user] and broken.user not in found.private
    without = engine.train(start, [*cohort[:2], *cohort[3:]])
    assert found.update.clients == (len(EXAMPLES) - 1 if chain == NO_TRANSFORMS else len(EXAMPLES))  # or as zeros
    assert max(differences(without, found).values()) < 2e-5


@pytest.mark.system
def test_workers_get_the_size_of_images():
    made = make("type")
    start, cohort = made.start().broadcast(), make_clients(made)
    in_process, in_workers = (CohortTrainer(made, 0, workers=workers).train(start, cohort) for workers in (0, 2))
    assert max(differences(in_process, in_workers).values()) < 2e-6  # in this process a product may use several threads


def test_clients_survive_encoding():
    """Tensors of the same form are joined; a client with another form or an extra tensor is encoded separately."""
    clients = [
        Client(
            "a", {"x": torch.ones(2), "scalar": torch.tensor(1.0)}, {"text": torch.ones(3, 4), "label": torch.ones(3)}
        ),
        Client(
            "b", {"x": torch.zeros(2), "scalar": torch.tensor(2.0)}, {"text": torch.ones(0, 4), "label": torch.ones(0)}
        ),
        Client(
            "c", {"x": torch.zeros(2), "scalar": torch.tensor(3.0), "y/0": torch.ones(1)}, {"text": torch.ones(1, 5)}
        ),
    ]
    tensors = clients_to_tensors(clients)
    assert "joined/private/x" in tensors and "data/1/text" in tensors
    for client, back in zip(clients, clients_from_tensors(["a", "b", "c"], tensors), strict=True):
        assert client.user == back.user
        for one, other in ((client.private, back.private), (client.data, back.data)):
            assert one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())
