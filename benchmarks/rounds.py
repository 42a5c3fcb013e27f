"""homespun's side of a workload: clients in memory, trained round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from homespun.core.messages import ServerState
from homespun.core.method import Batch, BuiltMethod
from homespun.core.transforms import NO_TRANSFORMS, Transforms
from homespun.engines.client import Client
from homespun.engines.cohort import CohortTrainer
from homespun.engines.simulation import SimulationEngine
from homespun.engines.staging import MemoryClients
from homespun.runs.round import run_round


class Rounds:
    """A method on the default engine. Users are numbered; `private` has each one's parameters as rows."""

    def __init__(self, built: BuiltMethod, *, seed: int, transforms: Transforms = NO_TRANSFORMS) -> None:
        self.built, self.seed, self.transforms = built, seed, transforms
        self.trainer = CohortTrainer(built, seed, transforms=transforms)

    def begin(self, state: ServerState, data: Sequence[Batch], private: Mapping[str, Tensor]) -> None:
        clients = (
            Client(user_name(user), {name: rows[user].clone() for name, rows in private.items()}, batch)
            for user, batch in enumerate(data)
        )
        self.state, self.store = state, MemoryClients(self.built, clients, seed=self.seed)
        scoring = self.built.method.scoring
        self.engine = SimulationEngine(self.built, self.store, self.trainer, scoring, self.seed, self.transforms)

    def round(self, cohort: Sequence[int]) -> None:
        users = [user_name(user) for user in cohort]
        self.state, _ = run_round(self.built, self.engine, self.state, users, transforms=self.transforms)

    def private(self, name: str) -> list[Tensor]:
        return [client.private[name] for client in self.store.clients.values()]


def user_name(user: int) -> str:
    return f"user-{user:04d}"
