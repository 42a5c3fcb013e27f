"""A client uses its own partition: every engine rejects a broadcast that asks for other parameters."""

from dataclasses import replace

import pytest
import torch

from homespun.core.errors import MessageError, WorkerError
from homespun.core.messages import pack
from homespun.core.method import Task, build
from homespun.data.dialects import Dialects
from homespun.data.dialects import Settings as DialectSettings
from homespun.engines.client import Client, client_update
from homespun.engines.cohort import CohortTrainer
from homespun.engines.exchange import clients_to_tensors
from homespun.engines.loop import LoopTrainer
from homespun.engines.pool import WorkerPool, broadcast_message, setup_message
from homespun.engines.worker import answer
from homespun.methods.furl import SMALL
from homespun.system.method_loading import load_method

FEDERATION = Dialects(DialectSettings(users=4, examples=10))
BUILT = build(load_method("furl", SMALL, Task(classes=8, population=4)), seed=0)
TABLE = build(load_method("furl", {**SMALL, "users": "table"}, Task(classes=8, population=4)), seed=0)


def client(built=BUILT):
    user = FEDERATION.users[0]
    return Client(user, built.new_private(user, seed=0), built.method.model.encode(FEDERATION.examples(0)))


def broadcast_with(built=BUILT, **more):
    start = built.start().broadcast()
    return replace(start, federated={**start.federated, **more})


def greedy():
    """A server that lists the private embedding among the federated parameters, with zeros to subtract from it."""
    return broadcast_with(**{"user.embedding": torch.zeros_like(BUILT.initial["user.embedding"])})


def wrong_broadcasts():
    start, table = BUILT.start().broadcast(), TABLE.start().broadcast()
    bias = start.federated["output.bias"]
    return {
        "a private parameter": (BUILT, greedy(), "'user.embedding' is listed as federated, but is private here"),
        "a private one as keyed": (
            BUILT,
            replace(start, keyed={"user.embedding": torch.zeros(1, 1)}),
            "'user.embedding' is listed as keyed, but is private here",
        ),
        "an unknown one": (
            BUILT,
            broadcast_with(spy=torch.zeros(1)),
            "'spy' is listed as federated, but is unknown here",
        ),
        "one left out": (
            BUILT,
            replace(start, federated={name: start.federated[name] for name in start.federated if "bias" not in name}),
            "missing federated .*'output.bias'",
        ),
        "a shape": (
            BUILT,
            broadcast_with(**{"output.bias": bias[:1]}),
            r"'output.bias': expected shape \(8,\), got \(1,\)",
        ),
        "a dtype": (
            BUILT,
            broadcast_with(**{"output.bias": bias.double()}),
            "'output.bias': expected torch.float32, got torch.float64",
        ),
        "a role": (
            TABLE,
            replace(table, federated={**table.federated, **table.keyed}, keyed={}),
            "'user.table' is listed as federated, but is keyed here",
        ),
    }


WRONG = wrong_broadcasts()
ENGINES = {
    "loop": LoopTrainer,
    "cohort": lambda built, seed: CohortTrainer(built, seed, workers=0),
}


@pytest.mark.parametrize(("built", "broadcast", "reason"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_a_broadcast_with_other_names_roles_shapes_or_types_is_rejected(engine, built, broadcast, reason):
    with pytest.raises(MessageError, match=reason):
        engine(built, 0).train(broadcast, [client(built)])


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_personalizing_and_predicting_reject_it_too(engine):
    with pytest.raises(MessageError, match="private here"):
        engine(BUILT, 0).train(greedy(), [client()], mode="personalize")
    with pytest.raises(MessageError, match="private here"):
        engine(BUILT, 0).predict(greedy(), [client()])


@pytest.mark.parametrize("kind", ["train", "predict"])
def test_a_worker_checks_the_broadcast_itself(kind):
    header = {"kind": kind, "mode": "round", "transforms": [], "users": [client().user]}
    with pytest.raises(MessageError, match="private here"):
        answer(BUILT, 0, greedy(), header, clients_to_tensors([client()]))


@pytest.mark.system
def test_a_worker_process_sends_nothing_to_such_a_server():
    with pytest.raises(MessageError, match="private here"):
        CohortTrainer(BUILT, 0, workers=1).train(greedy(), [client()])
    pool = WorkerPool(1)
    header = {"kind": "train", "mode": "round", "transforms": [], "users": [client().user]}
    job = {"setup": setup_message(BUILT, 0), "broadcast": broadcast_message(greedy())}
    with pytest.raises(WorkerError, match=r"MessageError: .*private here"):
        pool.run([pack(header, clients_to_tensors([client()]))], **job)
    pool.close()


def test_all_faults_are_reported_together():
    both = broadcast_with(spy=torch.zeros(1), **{"user.embedding": torch.zeros(1)})
    with pytest.raises(MessageError, match=r"2 faults(.|\n)*'spy'(.|\n)*'user.embedding'"):
        LoopTrainer(BUILT, 0).train(both, [client()])


def test_an_update_never_has_a_private_parameter_that_the_broadcast_lists():
    """Even without the check of the broadcast: weight 1 times (embedding - 0) would be the embedding, bit for bit."""
    one = replace(client(), data={name: column[:1] for name, column in client().data.items()})
    trained = BUILT.parameters(BUILT.start().broadcast(), one.private)
    sent = client_update(BUILT, greedy(), one, trained=trained, metrics={"loss": 0.0, "examples": 1.0}, seed=0)
    assert "user.embedding" not in sent.federated and "user.embedding" not in sent.keyed
    assert set(sent.federated) == set(BUILT.start().federated)
