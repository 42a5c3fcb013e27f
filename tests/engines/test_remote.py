"""Clients in another process, connected to the server only by a byte pipe."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
import pytest
import torch
from language_models import write_gpt2
from spoken_corpus import write_corpus

from homespun.core.errors import MessageError, WorkerError
from homespun.core.messages import broadcast_to_tensors, pack, state_to_bytes
from homespun.core.method import Task, build
from homespun.core.roles import Role
from homespun.engines.protocol import EvaluationProtocol
from homespun.engines.remote import RemoteEngine, answer, scores_from_tensors, scores_to_tensors
from homespun.methods.furl import SMALL
from homespun.runs.prototypes import make_prototypical_users
from homespun.runs.round import run_round
from homespun.runs.training import load, prepare
from homespun.runs.vault import Vault
from homespun.system.method_loading import load_method

# The clients' side: it shares only the file descriptor of its first argument with this process.
NODE = """
import json, sys
from multiprocessing.connection import Connection
import torch
torch.set_num_threads(1)
from homespun.engines.remote import answer
from homespun.runs.training import load, prepare

pipe, run = Connection(int(sys.argv[1])), None
while True:
    try:
        message = pipe.recv_bytes()
    except EOFError:
        break
    if message.startswith(b"open"):
        asked = json.loads(message[4:])
        if run is not None:
            run.close()
        federation = load(asked["source"], **asked["corpus"])
        run = prepare(asked["method"], federation, folder=asked["folder"], settings=asked["settings"])
        pipe.send_bytes(b"open")
        continue
    reply = answer(run.engine, message)
    pipe.send_bytes(reply)
    if b'"confirm"' in message[:200]:
        run.vault.commit(round=json.loads(message[8:8 + int.from_bytes(message[:8], "little")])["round"] + 1)
"""

ROUNDS = 3
LABELS = {"source": "dialects", "corpus": {"users": 12, "examples": 10}}
IMAGES = {"source": "digits", "corpus": {"users": 20}}
PFED = {f"base_settings.{name}": value for name, value in SMALL.items()}
METHODS = {
    "furl": ("furl", LABELS, SMALL),
    "furl, share of a step": ("furl", LABELS, {**SMALL, "private_update": "share"}),
    "furl, table": ("furl", LABELS, {**SMALL, "users": "table"}),
    "fedavg": ("fedavg", LABELS, {name: value for name, value in SMALL.items() if name != "user_dim"}),
    "central": ("central", LABELS, SMALL),
    "fedembed, prototypes": ("fedembed", IMAGES, {}),
    "fedembed, map": ("fedembed", IMAGES, {"assignment": "som", "map_every": 2}),
    "fedembed, own head": ("fedembed", IMAGES, {"assignment": "personal"}),
    "preference": ("preference", IMAGES, {}),
    "fedrep": ("fedrep", IMAGES, {}),
    "pfedme": ("pfedme", IMAGES, {}),
    "pfedkm": ("pfedkm", IMAGES, {}),
    "fedperc": ("fedperc", None, {"length": 12, "local_steps": 2, "batch": 3, "personalize_steps": 2}),
    "fedperc_generated": ("fedperc_generated", None, {"length": 12, "local_steps": 2, "batch": 3}),
    "split_learning": ("split_learning", None, {"length": 12, "local_steps": 2, "batch": 3, "personalize_steps": 2}),
    "meta_learning": ("meta_learning", None, {"length": 12, "local_steps": 2, "batch": 3, "personalize_steps": 2}),
}


@dataclass
class Pipe:
    """The server's end, with every byte that went through it."""

    connection: Connection
    down: bytearray
    up: bytearray

    def ask(self, message):
        self.connection.send_bytes(message)
        reply = self.connection.recv_bytes()
        self.down += message
        self.up += reply
        return reply


@pytest.fixture(scope="module")
def pipe(tmp_path_factory):
    ours, theirs = socket.socketpair()
    own = {**os.environ, "XDG_DATA_HOME": str(tmp_path_factory.mktemp("node")), "OMP_NUM_THREADS": "1"}
    with theirs:
        command = [sys.executable, "-c", NODE, str(theirs.fileno())]
        node = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=own)
    connection = Connection(ours.detach())
    yield Pipe(connection, bytearray(), bytearray())
    connection.close()
    assert node.wait(30) == 0


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    return {"source": str(write_corpus(folder / "people.csv")), "corpus": {}}, str(write_gpt2(folder / "base"))


def settings_of(case, texts):
    method, data, values = METHODS[case]
    run = {"rounds": ROUNDS, "cohort": 4, "withheld": 0.2, "workers": 0, "engine": "cohort"}
    if data is None:
        data, base = texts
        run |= {"withheld": 0.3, "cohort": 2, "base_model": base}
    return method, data, {**run, **values}


def protocols(run):
    part = run.scoring.scored_part
    found = [EvaluationProtocol(part)]
    if run.method.personalize.adapts:
        found.append(EvaluationProtocol(part, adapt_to="adapt", k=1))
        found.append(EvaluationProtocol(part, user_set="newcomers", adapt_to="train", k=2, private="prior"))
    return found


def evaluations(engine, scoring, state, participants, newcomers, asked):
    found = []
    for protocol in asked:
        users = newcomers if protocol.user_set == "newcomers" else participants
        counts = engine.evaluate(state.broadcast(), users, protocol)
        found.append(scoring.summarize(list(counts.values())).to_dict())
    return found


def texts_of(run, position):
    return run.clients.population.examples(position).texts


def found_in(wire, run):
    """Search bytes for the clients' own data: private values after training, texts, rows of encoded examples."""
    population = run.clients.population
    found = set()
    users = list(population.users)
    for user, private in run.clients.stored_private(users).items():
        for name, value in private.items():
            if value.unique().numel() > 3 and value.numpy().tobytes()[:16] in wire:
                found.add(f"{name} of {user}")
    for position in range(len(users)):
        found |= {text for text in texts_of(run, position) if text.encode() in wire}
        for name, column in run.clients.encode(population, position, "train").items():
            rows = [row for row in column if row.dim() and row.unique().numel() > 3]
            found |= {f"a row of {name}" for row in rows if row.numpy().tobytes() in wire}
    return found


@pytest.mark.system
@pytest.mark.parametrize("case", METHODS)
def test_a_run_over_a_byte_pipe_is_bit_identical(case, pipe, texts, tmp_path):
    method, data, settings = settings_of(case, texts)
    # the same run in one process
    federation = load(data["source"], **data["corpus"])
    with prepare(method, federation, folder=tmp_path / "whole", settings=settings) as run:
        for _ in run.rounds():
            pass
        users_by_set = list(run.federation.users), list(run.newcomers.users)
        users = run.clients.population.users
        cohorts = [[users[place] for place in run.schedule.cohorts.of(round)] for round in range(ROUNDS)]
        expected = evaluations(run.engine, run.scoring, run.state, *users_by_set, protocols(run))
        expected_state, kept = state_to_bytes(run.state), {user: run.vault.export(user) for user in run.vault.users()}
        task, origin, values = run.method.task, run.method.origin, run.method.settings.model_dump()
        asked = protocols(run)

        # the server knows the method, the names of users and the cohorts
        node = {"method": method, **data, "settings": settings, "folder": str(tmp_path / "node")}
        assert pipe.ask(b"open" + json.dumps(node).encode()) == b"open"
        pipe.down.clear()
        pipe.up.clear()
        built = build(load_method(origin, values, Task(**vars(task))), seed=0)
        engine, state = RemoteEngine(pipe.ask), built.start()
        server_users = make_prototypical_users(built, federation, seed=0)
        for cohort in cohorts:
            state, record = run_round(built, engine, state, cohort, server_users=server_users)
        found = evaluations(engine, built.method.scoring, state, *users_by_set, asked)
        assert state_to_bytes(state) == expected_state
        assert json.dumps(found) == json.dumps(expected)
        assert record.up_bytes["private"] == 0 and record.up_bytes["federated"] + record.up_bytes["keyed"] > 0

        # What clients send. A private row that still has its initial value may also be in what the server sends them.
        wire = bytes(pipe.up)
        assert found_in(wire, run) == set()
        assert not any(text.encode() in pipe.down for p in range(len(users)) for text in texts_of(run, p))
        # the search works: it finds shared parameters, and client data that is put on the wire
        shared = {**state.federated, **state.keyed}
        assert all(value.numpy().tobytes() in pipe.down for value in shared.values() if value.unique().numel() > 3)
        data = run.clients.encode(run.clients.population, 0, "train")
        own_values = [*data.values(), *(v for p in run.clients.stored_private(users).values() for v in p.values())]
        planted = wire + b"".join(value.numpy().tobytes() for value in own_values)
        assert found_in(planted + "".join(texts_of(run, 0)).encode(), run)
    with Vault.open(tmp_path / "node", read_only=True) as vault:  # private parameters are stored with the clients
        assert {user: vault.export(user) for user in vault.users()} == kept
        assert bool(kept) == bool(built.partition.names(Role.PRIVATE))


class UncalledEngine:
    """An engine that must not be called."""

    def __getattr__(self, name):
        raise AssertionError(name)


BROADCAST = build(load_method("fedavg", {name: value for name, value in SMALL.items() if name != "user_dim"},
                              Task(classes=3, population=2)), seed=0).start().broadcast()  # fmt: skip


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"ask": "give"}, "unknown request 'give'"),
        ({"ask": "train", "users": "ann"}, "must be a list of names"),
        ({"ask": "train", "users": [3]}, "must be a list of names"),
        ({"ask": "evaluate", "protocol": None}, "protocol: missing or unknown fields"),
        ({"ask": "evaluate", "protocol": {"part": "diary"}}, "protocol: missing or unknown fields"),
        ({"ask": "confirm", "round": -1, "weight": 1.0}, "round must be a non-negative integer"),
        ({"ask": "confirm", "round": 1, "weight": float("inf")}, "weight must be a non-negative number"),
    ],
)
def test_an_invalid_message_is_answered_with_an_error(header, reason):
    sent, tensors = broadcast_to_tensors(BROADCAST)
    message = pack({"users": [], **sent, **header}, tensors)
    with pytest.raises(WorkerError, match=reason):
        RemoteEngine(lambda _: answer(UncalledEngine(), message)).confirm(0, weight=1.0)


@pytest.mark.parametrize(
    "wrong", [{"part": "adapt"}, {"user_set": "population"}, {"adapt_to": "test"}, {"private": "another"}, {"k": -1}]
)
def test_a_protocol_cannot_read_other_parts_than_evaluations_do(wrong):
    protocol = {"part": "test", "user_set": "participants", "adapt_to": None, "k": None, "private": "own", **wrong}
    sent, tensors = broadcast_to_tensors(BROADCAST)
    message = pack({"ask": "evaluate", "users": [], "protocol": protocol, **sent}, tensors)
    assert b"protocol: invalid" in answer(UncalledEngine(), message)


def test_scores_survive_encoding_for_any_user_name():
    scores = {"a/b": {"loss": np.array(1.5), "tokens": np.array([1, 2])}, "\ud800": {"loss": np.array(2.0)}, "": {}}
    found = scores_from_tensors(*scores_to_tensors(scores))
    assert list(found) == list(scores)
    assert found["a/b"]["tokens"].tolist() == [1, 2] and found["\ud800"]["loss"] == 2.0
    with pytest.raises(MessageError, match="does not name"):
        scores_from_tensors({"users": []}, {"0/loss": torch.zeros(())})
