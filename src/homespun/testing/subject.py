"""The method under test with a small cohort, and rounds of training with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from homespun.core import tree
from homespun.core.messages import ServerState, state_to_bytes
from homespun.core.method import BuiltMethod, Method, build
from homespun.core.transforms import Transforms, UpdateTransform
from homespun.data import load_federation
from homespun.data.dialogue import as_read
from homespun.data.federation import Federation
from homespun.engines.client import Client, Trainer
from homespun.engines.cohort import CohortTrainer
from homespun.engines.loop import LoopTrainer
from homespun.engines.simulation import SimulationEngine
from homespun.engines.staging import MemoryClients
from homespun.runs.open_run import task_of
from homespun.runs.prototypes import make_prototypical_users
from homespun.runs.round import run_round
from homespun.runs.training import separate_settings
from homespun.system.method_loading import load_method, method_module

SIZES = (1, 3, 8, 17, 20, 500)  # examples per user: one, partial last batches, very many
USERS = len(SIZES)
SEED = 7


@dataclass(frozen=True)
class Subject:
    """The method under test with a cohort of clients of very different sizes."""

    built: BuiltMethod
    federation: Federation
    clients: tuple[Client, ...]
    large_client: Client  # it has very many examples and is slow, so that only some checks use it

    @property
    def method(self) -> Method:
        return self.built.method

    @cached_property
    def engine_difference(self) -> float:
        """The largest difference between the loop and the cohort trainer, over two rounds with all clients and their
        predictions afterwards."""
        all_clients = [*self.clients, self.large_client]
        slow, fast = (run_rounds(self, make, clients=all_clients) for make in (loop_trainer, cohort_trainer))
        trainers = LoopTrainer(self.built, SEED), CohortTrainer(self.built, SEED, workers=0)
        outputs = [trainer.predict(slow[0].broadcast(), self.clients) for trainer in trainers]
        apart = [float((one - other).abs().max()) for one, other in zip(*outputs, strict=True)]
        return max(*differences(slow, fast), *apart)


def make_subject(origin: str, settings: Mapping[str, Any]) -> Subject:
    separate_settings(origin, settings)  # a name that the run has too could not be set
    small = getattr(method_module(origin), "SMALL", {})
    corpus = getattr(
        method_module(settings.get("base_method", origin)), "CORPUS", {"source": "dialects", "users": USERS}
    )
    federation = load_federation(corpus["source"], settings={"users": corpus["users"]})
    method = load_method(origin, {**small, **settings}, task_of(federation))
    if method.model.reads == "replies":
        federation = as_read(talk_in_turns(federation), method.model.reads)
        method = load_method(origin, {**small, **settings}, task_of(federation), files=method.files)
    built = build(method, seed=SEED)
    clients = []
    for position, size in enumerate(SIZES):
        user = federation.users[position]
        pool = federation.examples(position)
        data = method.model.encode(pool.take(np.arange(size) % len(pool)))  # repeats examples if there are too few
        clients.append(Client(user, private=built.new_private(user, seed=SEED), data=data))
    return Subject(built, federation, tuple(clients[:-1]), clients[-1])


def talk_in_turns(federation: Federation) -> Federation:
    """A corpus with conversations: in each, all users say one of their texts, and another one starts."""
    users = len(federation.users)
    texts = [federation.examples(user).texts for user in range(users)]
    turns = [(talk, (talk + turn) % users) for talk in range(min(map(len, texts))) for turn in range(users)]
    return load_federation(
        [{"user": federation.users[user], "text": texts[user][talk], "conversation": talk} for talk, user in turns]
    )


MakeTrainer: TypeAlias = Callable[[BuiltMethod, Transforms], Trainer]


def loop_trainer(built: BuiltMethod, transforms: Transforms) -> Trainer:
    return LoopTrainer(built, SEED, transforms)


def cohort_trainer(built: BuiltMethod, transforms: Transforms) -> Trainer:
    return CohortTrainer(built, SEED, workers=0, transforms=transforms)


def run_rounds(
    subject: Subject,
    make_trainer: MakeTrainer,
    rounds: int = 2,
    clients: Sequence[Client] | None = None,
    more: tuple[UpdateTransform, ...] = (),
) -> tuple[ServerState, dict[str, Any]]:
    """Run some rounds with all clients; return the server's state and each client's private parameters. `more` are
    transforms in addition to the method's own."""
    built, state = subject.built, subject.built.start()
    store = MemoryClients(built, clients or subject.clients, seed=SEED)
    transforms = Transforms((*built.method.transforms, *more))
    engine = SimulationEngine(built, store, make_trainer(built, transforms), built.method.scoring, SEED, transforms)
    server_users = make_prototypical_users(built, subject.federation, seed=SEED)
    for _ in range(rounds):
        state, _ = run_round(
            built, engine, state, list(store.clients), transforms=transforms, server_users=server_users
        )
    return state, {user: client.private for user, client in store.clients.items()}


def are_bit_identical(left: tuple[ServerState, Any], right: tuple[ServerState, Any]) -> bool:
    """Whether two results of `run_rounds` are bit-identical."""
    same_private = all(tree.to_bytes(left[1][user]) == tree.to_bytes(right[1][user]) for user in left[1])
    return same_private and state_to_bytes(left[0]) == state_to_bytes(right[0])


def differences(one: tuple[ServerState, Any], other: tuple[ServerState, Any]) -> list[float]:
    """Return the largest differences between two results of `run_rounds`."""
    return [
        tree.max_abs_difference(one[0].federated, other[0].federated),
        tree.max_abs_difference(one[0].keyed, other[0].keyed),
        tree.max_abs_difference(one[0].server, other[0].server),
        *(tree.max_abs_difference(one[1][user], other[1][user]) for user in one[1]),
    ]
