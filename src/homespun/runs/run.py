"""A run: a federation, a method and a vault, ready for the next round.

    corpus -> federation -> cohort -> local work -> update -> transforms -> server rule -> state
                                          |                                              |
                                      client store                            the caller's `for` loop

`rounds` is a generator: checkpoints, evaluation, early stopping and logging are plain statements in the caller's loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from homespun.core.devices import require_device
from homespun.core.errors import RunError
from homespun.core.messages import ServerState, state_to_bytes
from homespun.core.method import BuiltMethod, Method
from homespun.core.progress import Show, silent, start_count
from homespun.core.records import RoundRecord
from homespun.core.scoring import Scoring
from homespun.core.transforms import Transforms
from homespun.data.federation import Federation
from homespun.engines.client import Trainer
from homespun.engines.cohort import CohortTrainer
from homespun.engines.loop import LoopTrainer
from homespun.engines.protocol import Engine
from homespun.engines.simulation import BLOCK, SimulationEngine, blocks
from homespun.privacy.dp import DpMechanism, dp_of
from homespun.privacy.ledger import BudgetError
from homespun.runs.clients import SimulatedClients
from homespun.runs.prototypes import PrototypicalUsers
from homespun.runs.round import run_round
from homespun.runs.run_transforms import make_transforms
from homespun.runs.schedule import Schedule
from homespun.runs.settings import RunSettings
from homespun.runs.vault import Vault
from homespun.system.machine import cpu_cores, machine_records

PERSONALIZED = "personalized"  # the record of the final personalization
PERSONALIZED_USERS = "personalized users"  # artefact: how many participants have personalized, in their order
SEARCHES_PER_WORKER = 8  # clients that personalize alone, for each worker between two commits


@dataclass
class Run:
    """One training run: `rounds` advances `state`, and `commit` writes it to the vault. Its engine, transforms and
    schedule are created from the settings on first use."""

    federation: Federation  # participants
    newcomers: Federation  # users who never take part
    built: BuiltMethod
    settings: RunSettings
    vault: Vault
    state: ServerState
    server_users: PrototypicalUsers
    data: Any = None  # how the federation was loaded, if it can be loaded again
    progress: Show = silent  # called with the progress of long work
    temporary: Any = None  # keeps a temporary folder as long as the run
    _records: list[dict[str, Any]] = field(default_factory=list)  # not committed yet

    @property
    def method(self) -> Method:
        return self.built.method

    @cached_property
    def clients(self) -> SimulatedClients:
        """The simulated clients: data and private state of all users."""
        return SimulatedClients(
            self.built,
            self.federation,
            self.newcomers,
            self.vault,
            seed=self.settings.seed,
            fractions=self.settings.fractions,
            split_by=self.settings.split_by,
            evaluate_examples=self.settings.evaluate_examples,
            keep_copies=self.settings.final_personalization,
        )

    @cached_property
    def schedule(self) -> Schedule:
        return Schedule(self.built, self.clients.population, self.settings)

    @cached_property
    def transforms(self) -> Transforms:
        return make_transforms(
            self.method.transforms,
            self.settings,
            federation=self.federation,
            schedule=self.schedule,
            vault=self.vault,
            progress=self.progress,
        )

    @cached_property
    def trainer(self) -> Trainer:
        """Computes the local training of clients."""
        settings = self.settings
        device = require_device(settings.device)  # the run may be opened on another machine
        if settings.engine == "loop":
            return LoopTrainer(self.built, settings.seed, self.transforms, device=device)
        return CohortTrainer(self.built, settings.seed, self._workers, self.transforms, device=device)

    @property
    def _workers(self) -> int:
        return cpu_cores() if self.settings.workers is None else self.settings.workers

    @cached_property
    def engine(self) -> Engine:
        seed = self.settings.seed
        return SimulationEngine(self.built, self.clients, self.trainer, self.scoring, seed, self.transforms)

    @property
    def scoring(self) -> Scoring:
        return self.method.scoring

    @property
    def dp(self) -> DpMechanism | None:
        """The DP mechanism of a private run."""
        return dp_of(self.transforms)

    @property
    def total_rounds(self) -> int:
        return self.schedule.total_rounds

    def step(self) -> RoundRecord:
        """Run one round. Nothing is written to disk before `commit`."""
        users = self.clients.population.users
        cohort = [users[position] for position in self.schedule.cohorts.of(self.state.round)]
        self.state, record = run_round(
            self.built,
            self.engine,
            self.state,
            cohort,
            transforms=self.transforms,
            server_users=self.server_users,
            progress=self.progress,
        )
        self._records.append(record.to_dict())
        return record

    def rounds(self) -> Iterator[RoundRecord]:
        """Run the remaining rounds. With commit_every = 1, a round is on disk before the next one starts."""
        if self.state.round < self.total_rounds:
            if self._personalized or self._personalized_users:
                raise RunError(
                    f"{self.vault.path.parent}: its participants personalized after round {self.state.round}, so it "
                    f"cannot be trained further: it would differ from a run of {self.total_rounds} rounds. Train in "
                    "another folder."
                )
            self._records += machine_records(self.history(), round=self.state.round, folder=self.vault.path.parent)
        while self.state.round < self.total_rounds:
            try:
                record = self.step()
            except BudgetError:  # earlier rounds are in the ledger already
                self.commit()
                raise
            if self.state.round % self.settings.commit_every == 0:
                self.commit()
            yield record
        self.commit()
        if not self.finished:
            self._personalize_participants()

    @property
    def finished(self) -> bool:
        """Whether all rounds are done and participants have personalized, if they should or have begun to."""
        personalizes = self.settings.final_personalization and self.method.personalize.adapts
        begun = personalizes or self._personalized_users > 0
        return self.state.round >= self.total_rounds and (not begun or self._personalized)

    @property
    def _personalized(self) -> bool:
        return any(entry["kind"] == PERSONALIZED for entry in self.history())

    @property
    def _personalized_users(self) -> int:
        """How many participants have personalized so far, in their order."""
        stored = self.vault.artefact(PERSONALIZED_USERS)
        return 0 if stored is None else int.from_bytes(stored, "big")

    def _personalize_participants(self) -> None:
        """Participants personalize with the final model. Those who are done are committed step by step."""
        users, broadcast = self.clients.population.users, self.state.broadcast()
        count = self._personalized_users
        done = start_count(self.progress, "final personalization", total=len(users))
        done(count)
        for block in blocks(users[count:], self._personalized_at_once):
            self.engine.personalize(broadcast, block, done=done)
            self.engine.confirm(self.state.round, weight=0.0)
            count += len(block)
            self.vault.stage_artefact(PERSONALIZED_USERS, count.to_bytes(8, "big"))
            if count == len(users):
                self.record({"kind": PERSONALIZED, "round": self.state.round})
            self._write()

    @property
    def _personalized_at_once(self) -> int:
        """How many participants personalize between two commits: what a kill repeats at most. If clients are
        personalized together, it must not depend on the number of workers."""
        if not self.method.personalize.alone:
            return BLOCK
        return SEARCHES_PER_WORKER * max(1, self._workers)

    def start_from(self, state: ServerState, history: Iterable[Mapping[str, Any]]) -> None:
        """Take the rounds of another run, which trained the same; participants personalize anew."""
        self.state = state
        self._records += [dict(entry) for entry in history if entry["kind"] != PERSONALIZED]
        self.commit()

    def record(self, entry: Mapping[str, Any]) -> None:
        """Add an entry to the history; it is written with the next commit."""
        self._records.append(dict(entry))

    def commit(self) -> None:
        """Write private rows, the server's state and the records to the vault, in one transaction."""
        if self._records or self.vault.state is None:
            self._write()

    def _write(self) -> None:
        self.vault.commit(
            round=self.state.round,
            state=state_to_bytes(self.state),
            records=self._records,
            shows_round=not self.schedule.cohorts.secret,  # a row's round discloses when its user was last drawn
        )
        self._records.clear()

    def history(self) -> list[dict[str, Any]]:
        return [*self.vault.history(), *self._records]

    def close(self) -> None:
        if "trainer" in vars(self):  # it is created on first use
            self.trainer.close()
        self.vault.close()
        if self.temporary is not None:
            self.temporary.cleanup()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def __repr__(self) -> str:
        users = len(self.federation.users)
        return f"<Run of {self.method.name} on {self.federation.name}: {users} users, round {self.state.round}>"
