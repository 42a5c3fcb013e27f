"""An engine whose clients are all on this machine: it loads them from its store and trains them with a trainer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from homespun.core import seeds
from homespun.core.messages import Broadcast
from homespun.core.method import Batch, BuiltMethod, Method
from homespun.core.progress import Done, silent
from homespun.core.scoring import Counts, Part, Scoring
from homespun.core.transforms import NO_TRANSFORMS, Transforms
from homespun.core.tree import Tree
from homespun.engines.client import Client, Trainer, client_weight
from homespun.engines.protocol import ClientStore, EvaluationProtocol, Trained

BLOCK = 500  # users loaded and scored at a time


@dataclass(frozen=True)
class SimulationEngine:
    built: BuiltMethod
    store: ClientStore
    trainer: Trainer
    scoring: Scoring
    seed: int
    transforms: Transforms = NO_TRANSFORMS

    def train(self, broadcast: Broadcast, users: Sequence[str], *, done: Done = silent) -> Trained:
        clients = self.store.load(users, "train", broadcast, user_set="population")
        outcome = self.trainer.train(broadcast, clients, done=done)
        weights = {client.user: client_weight(self.built, client, self.transforms) for client in clients}
        self.store.stage(broadcast.round, clients, outcome.private, weights=weights)
        return Trained(outcome.update, tuple(outcome.rejected.values()), outcome.sent_bytes)

    def personalize(self, broadcast: Broadcast, users: Sequence[str], *, done: Done = silent) -> None:
        clients = self.store.load(users, "train", broadcast, user_set="population")
        learned = personalize_clients(self.built.method, self.trainer, broadcast, clients, done=done)
        private = {client.user: tree for client, tree in zip(clients, learned, strict=True)}
        self.store.stage(broadcast.round, clients, private, weights={})

    def confirm(self, round: int, *, weight: float) -> None:
        self.store.confirm(round, weight=weight)

    def evaluate(
        self, broadcast: Broadcast, users: Sequence[str], protocol: EvaluationProtocol, *, done: Done = silent
    ) -> dict[str, Counts]:
        found: dict[str, Counts] = {}
        owners = [*users[1:], *users[:1]] if protocol.private == "another" else users
        for block, theirs in zip(blocks(users), blocks(owners), strict=True):
            clients = self._load(block, protocol.part, broadcast, protocol)
            states = self._states(broadcast, theirs, protocol, loaded=clients, done=done)
            clients = [replace(client, private=own) for client, own in zip(clients, states, strict=True)]
            found |= score_clients(self.scoring, self.trainer, broadcast, clients, done=done)
        return found

    def _states(
        self,
        broadcast: Broadcast,
        users: Sequence[str],
        protocol: EvaluationProtocol,
        *,
        loaded: Sequence[Client],
        done: Done,
    ) -> list[Tree]:
        """Return the private parameters to score with, after personalization if the protocol asks for it."""
        adapt_to = protocol.adapt_to or ("train" if self.built.method.personalize.generates else None)
        clients = loaded
        if adapt_to is not None or protocol.private == "another":
            clients = self._load(users, adapt_to or protocol.part, broadcast, protocol)
        if adapt_to is None:
            return [client.private for client in clients]
        clients = [replace(client, data=self._k_shot(client, protocol.k)) for client in clients]
        return personalize_clients(self.built.method, self.trainer, broadcast, clients, done=done)

    def _load(
        self, users: Sequence[str], part: Part, broadcast: Broadcast, protocol: EvaluationProtocol
    ) -> list[Client]:
        prior = protocol.private == "prior"
        return self.store.load(users, part, broadcast, user_set=protocol.user_set, prior=prior)

    def _k_shot(self, client: Client, k: int | None) -> Batch:
        return k_shot(client.data, k, draw=seeds.numpy_generator(self.seed, "samples", client.user))

    def close(self) -> None:
        self.trainer.close()


def blocks(users: Sequence[str], size: int = BLOCK) -> Iterator[Sequence[str]]:
    return (users[start : start + size] for start in range(0, len(users), size))


def k_shot(data: Batch, k: int | None, *, draw: np.random.Generator) -> Batch:
    """Draw `k` examples, in the order of the corpus; None: all. A smaller k gives a subset of a larger k.

    The first `k` examples are not used: they are often openings, dates or greetings, all in one context.
    """
    if k is None:
        return data
    chosen = np.sort(draw.permutation(len(next(iter(data.values()))))[:k])
    return {name: column[torch.from_numpy(chosen)] for name, column in data.items()}


def personalize_clients(
    method: Method, trainer: Trainer, broadcast: Broadcast, clients: Sequence[Client], *, done: Done = silent
) -> list[Tree]:
    """Personalize each client on its examples and return its private parameters; nothing is uploaded."""
    able = [client for client in clients if client.examples or method.personalize.generates]
    if not method.personalize.adapts or not able:
        done(len(clients))
        return [client.private for client in clients]
    learned = trainer.train(broadcast, able, mode="personalize", done=done).private
    done(len(clients) - len(able))
    return [learned.get(client.user, client.private) for client in clients]


def score_clients(
    scoring: Scoring, trainer: Trainer, broadcast: Broadcast, clients: Sequence[Client], *, done: Done = silent
) -> dict[str, Counts]:
    """Return the additive scores of the clients that have examples."""
    able = [client for client in clients if client.examples]
    outputs = trainer.predict(broadcast, able, done=done)
    done(len(clients) - len(able))
    return {client.user: scoring.score(client.data, output) for client, output in zip(able, outputs, strict=True)}
