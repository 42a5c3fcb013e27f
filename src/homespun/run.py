"""The round loop.

    corpus -> federation -> cohort -> local work -> update -> checks -> server rule -> state
                                          |                                             |
                                        vault                              the caller's `for` loop

`rounds` is a generator: checkpoints, evaluation, early stopping and logging are plain statements in
the loop of whoever consumes it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import ceil, nan
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import torch
from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from homespun.cohorts import Cohorts
from homespun.core.errors import SettingsError
from homespun.core.intake import refused_error
from homespun.core.messages import (
    Broadcast,
    ServerState,
    Update,
    require_finite,
    require_valid,
    state_to_bytes,
)
from homespun.core.method import Batch, Built, Method, Phase, optimizers
from homespun.core.progress import Done, Show, counted, silent
from homespun.core.roles import SHARED, Role
from homespun.core.settings import Settings
from homespun.core.threads import one_thread
from homespun.core.tree import Tree
from homespun.data.federation import Examples, Federation
from homespun.data.splits import Split, original, part, part_sizes, pooled, sample_users, split
from homespun.engines.cohort import CohortEngine, default_workers
from homespun.engines.engine import Client, Engine
from homespun.engines.loop import LoopEngine
from homespun.machine import machine_records
from homespun.privacy.accounting import Release
from homespun.privacy.finding import ledger_of, ledger_of_unprotected, ledger_to_read
from homespun.privacy.ledger import BudgetError, Ledger
from homespun.privacy.register import data_set_of
from homespun.privacy.settings import Plan, Privacy, Sampler, make_plan
from homespun.privacy.steward import Steward
from homespun.traffic import NUMBER, traffic
from homespun.vault import Vault

Part = Literal["train", "eval", "test", "adapt", "scored"]
ENCODED_BYTES = 2**31  # of examples that a run keeps as tensors: 900 users of speech have 1.4 GB
COUNTED_USERS = 1000  # as many users' examples are counted to know how long an epoch is


# A file or a command cannot say None.
ExampleLimit: TypeAlias = Annotated[
    PositiveInt | None,
    BeforeValidator(
        lambda given: None if given == "all" else given, json_schema_input_type=PositiveInt | Literal["all"] | None
    ),
]


class RunSettings(Settings):
    """How a federation is trained, whatever the method."""

    rounds: PositiveInt | None = None
    """Rounds to train. Give either rounds or epochs; without both, `homespun train` takes 10 epochs."""
    epochs: PositiveFloat | None = None
    """Instead of rounds: how often every training example is used."""
    cohort: PositiveInt | Literal["all"] = 10
    """Clients in a round; with sampler = poisson, on average."""
    sampler: Sampler = "shuffled"
    """How cohorts are drawn: every client once an epoch in a new order; a new draw of equal size every round; or every
    client independently of the others, which privacy with amplification needs."""
    seed: NonNegativeInt = 0
    """All random draws derive from it."""
    fractions: tuple[PositiveFloat, NonNegativeFloat, NonNegativeFloat] = (0.8, 0.1, 0.1)
    """Shares of a user's examples for training, evaluation and testing."""
    withheld: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the users who never take part. They are tested as new users after training."""
    fold: NonNegativeInt | None = None
    """Which users are withheld: over all folds, each user once. Not set: a random draw."""
    engine: Literal["cohort", "loop"] = "cohort"
    """How clients are trained: many at a time, or one after another in this process (slow, for comparison)."""
    workers: NonNegativeInt | None = None
    """Worker processes. 0: everything in this process. Not set: one for each CPU core."""
    evaluate_every: PositiveInt | None = None
    """Rounds between two evaluations on the evaluation part. Not set: about 20 evaluations in a run."""
    evaluate_users: PositiveInt = 1000
    """Users in an evaluation at most, drawn once for the run; of new users, as many again."""
    evaluate_examples: ExampleLimit = None
    """Examples of each user in an evaluation at most, evenly spaced. Not set: all."""
    commit_every: PositiveInt = 1
    """Rounds between two commits to disk. A killed run repeats the rounds since the last commit."""
    privacy: Privacy | None = None
    """Differential privacy of what clients send, as in privacy.epsilon=8. Not set: no differential privacy."""

    @field_validator("fractions")
    @classmethod
    def _shares_of_one(cls, fractions: tuple[float, float, float]) -> tuple[float, float, float]:
        try:
            part_sizes(0, fractions)
        except SettingsError as error:
            raise ValueError(str(error)) from None
        return fractions

    @model_validator(mode="after")
    def _one_length(self) -> RunSettings:
        if (self.rounds is None) == (self.epochs is None):
            raise ValueError("give either rounds or epochs")
        return self

    def identity(self) -> dict[str, Any]:
        """What makes two runs different runs: not how long they go on, nor on how many processes."""
        free = {"workers", "evaluate_every", "evaluate_users", "evaluate_examples", "commit_every"}
        if self.privacy is None or self.privacy.epsilon is None:  # else the length says how much noise there is
            free |= {"rounds", "epochs"}
        found = self.model_dump(
            mode="json", exclude_none=True, exclude={"privacy": {"budget", "ledger", "public_filters"}}
        )
        return {name: value for name, value in found.items() if name not in free}


@dataclass(frozen=True)
class RoundRecord:
    """What is known of a round afterwards."""

    round: int  # rounds done, this one included
    clients: int
    examples: int
    loss: float  # mean over the examples trained on, as they were met
    seconds: float  # NaN under privacy
    down_bytes: Mapping[str, int]  # by role, the whole cohort
    up_bytes: Mapping[str, int]
    refused: int = 0  # updates that were not taken

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "round", **asdict(self)}


@dataclass
class Run:
    """A federation, a method and a vault, ready for the next round."""

    federation: Federation
    built: Built
    settings: RunSettings
    vault: Vault
    state: ServerState
    newcomers: Federation  # users who never take part
    prototypical: Sequence[Batch] = ()  # examples of users whom the server holds itself
    _records: list[dict[str, Any]] = field(default_factory=list)
    data: Any = None  # how the federation was loaded, if it can be loaded again
    temporary: Any = None  # keeps a folder that nobody named alive as long as the run
    progress: Show = silent  # is told how far long work is
    _encoded: OrderedDict[tuple[int, int, str], Batch] = field(default_factory=OrderedDict)
    _encoded_bytes: int = 0

    @property
    def method(self) -> Method:
        return self.built.method

    @cached_property
    def engine(self) -> Engine:
        workers = default_workers() if self.settings.workers is None else self.settings.workers
        guard = None if self.steward is None else self.steward.guard
        if self.settings.engine == "loop":
            return LoopEngine(self.built, self.settings.seed, guard)
        return CohortEngine(self.built, self.settings.seed, workers, guard)

    @cached_property
    def server_engine(self) -> Engine:
        """For users whom the server holds itself: what they would share is not trained, because it would not be used,
        and nothing is clipped or noised, because nothing of anybody's is in it."""
        private = self.built.partition.names(Role.PRIVATE)
        phases = tuple(replace(phase, trains=optimizers(phase, private)) for phase in self.method.phases)
        built = replace(self.built, method=replace(self.method, phases=phases))
        return CohortEngine(built, self.settings.seed, workers=0)

    @cached_property
    def plan(self) -> Plan | None:
        """How what clients send is kept private; None if it is not."""
        privacy = self.settings.privacy
        if privacy is None:
            return None
        users = len(self.population.users)
        return make_plan(
            privacy,
            users=users,
            cohort=self.cohort_size,
            sampler=self.settings.sampler,
            rounds=self.total_rounds,
            progress=self.progress,
        )

    @cached_property
    def ledger(self) -> Ledger | None:
        """The ledger of the data: of a run without privacy only where the data have one already."""
        data, privacy = data_set_of(original(self.federation)), self.settings.privacy
        if privacy is None:
            return None if self.vault.read_only else ledger_of_unprotected(data)
        return (ledger_to_read if self.vault.read_only else ledger_of)(data, named=privacy.ledger)

    @cached_property
    def steward(self) -> Steward | None:
        """Applies the mechanism of a private run and debits its ledger."""
        plan, settings = self.plan, self.settings
        if plan is None or self.ledger is None:
            return None
        in_turns = plan.local and settings.sampler == "shuffled"
        return Steward(
            plan,
            self.ledger,
            run=self.vault.token,
            seed=settings.seed,
            rounds_per_release=int(self.cohorts.rounds_per_turn) if in_turns else 1,
            committed=self.vault.round,
            public=getattr(original(self.federation), "looks_across", ()),
        )

    @property
    def spending(self) -> dict[Release, int]:
        """What this run has told of anybody; nothing where there is no privacy to lose."""
        return {} if self.steward is None else self.steward.spending(rounds=self.state.round)

    @cached_property
    def population(self) -> Federation:
        """Who trains: every participant with their training part, or one server that has them all."""
        training = part(self.federation, "train", seed=self.settings.seed, fractions=self.settings.fractions)
        return pooled(training) if self.method.pooled else training

    @cached_property
    def total_rounds(self) -> int:
        if self.settings.rounds is not None:
            return self.settings.rounds
        return ceil((self.settings.epochs or 0) * self.rounds_per_epoch)

    @property
    def cohort_size(self) -> int:
        users = len(self.population.users)
        return users if self.settings.cohort == "all" else min(self.settings.cohort, users)

    @cached_property
    def cohorts(self) -> Cohorts:
        users, settings = len(self.population.users), self.settings
        privacy = settings.privacy  # with noise of their own, who came is plain to see
        secret = privacy is not None and privacy.noise == "central" and not privacy.insecure
        return Cohorts(users, self.cohort_size, settings.sampler, settings.seed, secret=secret)

    @cached_property
    def rounds_per_epoch(self) -> float:
        """Rounds until as many examples were used as there are.

        A client that goes through its own examples in one turn makes this the turn; one that takes a fixed
        number of steps needs more turns the more examples there are.
        """
        first = self.first_phase
        if first.steps is None:
            return self.cohorts.rounds_per_turn
        positions = sample_users(self.population, at_most=COUNTED_USERS, seed=self.settings.seed)
        mean_examples = float(np.mean([len(self.population.examples(position)) for position in positions]))
        return self.cohorts.rounds_per_turn * mean_examples / (first.steps * min(first.batch, mean_examples))

    @property
    def first_phase(self) -> Phase:
        """The first one that trains something shared."""
        shared = self.built.partition.names(*SHARED)
        return next((phase for phase in self.method.phases if optimizers(phase, shared)), self.method.phases[0])

    def encode(self, federation: Federation, position: int, part: Part) -> Batch:
        """One user's part as tensors; the most recent are kept, as many as there is room for."""
        key = (id(federation), position, part)  # a run has few federations, and they live as long
        if key not in self._encoded:
            whole = federation is self.population  # it holds training parts already
            examples = federation.examples(position) if whole else getattr(self.split(federation, position), part)
            if part in ("eval", "test", "scored"):
                examples = spaced(examples, self.settings.evaluate_examples)
            self._encoded[key] = self.method.encode(examples)
            self._encoded_bytes += _bytes_of(self._encoded[key])
        self._encoded.move_to_end(key)
        while self._encoded_bytes > ENCODED_BYTES and len(self._encoded) > 1:
            self._encoded_bytes -= _bytes_of(self._encoded.popitem(last=False)[1])
        return self._encoded[key]

    def private(self, users: Sequence[str]) -> dict[str, Tree]:
        """Everybody's private parameters: from the vault, or new."""
        known = self.kept(users)
        return {user: known[user] if user in known else self.new_private(user) for user in users}

    def kept(self, users: Sequence[str]) -> Mapping[str, Tree]:
        """The private parameters of those users of whom the vault has some; a row of another method is refused."""
        parts, initial = self.built.partition, self.built.initial
        private, shared = parts.select(initial, Role.PRIVATE), parts.select(initial, *SHARED)
        new = [user for user in users if user not in self.population.users]  # they keep copies of what they adapted
        known = [user for user in users if user in self.population.users]
        return {
            **self.vault.private_many(known, like=private),
            **self.vault.private_many(new, like=private, copies=shared),
        }

    def new_private(self, user: str) -> Tree:
        """Where somebody new begins, with the model as it is now."""
        return self.built.new_private(user, seed=self.settings.seed, broadcast=self.state.broadcast())

    def clients(self, positions: Sequence[int]) -> list[Client]:
        names = [self.population.users[position] for position in positions]
        private = self.private(names)
        return [
            Client(name, private=private[name], data=self.encode(self.population, position, "train"))
            for name, position in zip(names, positions, strict=True)
        ]

    @one_thread()
    def step(self) -> RoundRecord:
        """One round: nothing of it is on disk before `commit`."""
        started = time.perf_counter()
        broadcast = self.state.broadcast()
        clients = self.clients(self.cohorts.of(self.state.round))
        if self.steward is not None:
            self.steward.before_work(broadcast)
        elif self.ledger is not None:
            self.ledger.admit(run=self.vault.token)
        outcome = self.engine.work(broadcast, clients, done=self._counted_round(len(clients)))
        # A few bad ones are left out. Under privacy they count as zero, however many there are: to stop would be a
        # release without noise.
        if self.plan is None and outcome.refused and 2 * len(outcome.refused) >= len(clients):
            who = f"{len(outcome.refused)} of {len(clients)} updates"
            raise refused_error(who, outcome.refused, round=self.state.round)
        require_valid(outcome.update, broadcast, statistics=self.method.statistics)
        prototypes = self._prototypes(broadcast)
        update = outcome.update if self.steward is None else self.steward.released(outcome.update, broadcast)
        state = self.method.server(self.state, update)
        state = replace(state, federated={**state.federated, **prototypes})
        require_finite(state)
        self.state = state
        if self.built.partition.names(Role.PRIVATE):
            self.vault.stage(self._kept(clients, outcome.private, update))
        told = update.clients > 0 if self.plan is None else self.plan.clip.statistics is not None
        record = RoundRecord(
            round=self.state.round,
            clients=update.clients,
            examples=max(0, int(update.statistics["examples"])),
            loss=update.statistics["loss"] / max(1.0, update.statistics["examples"]) if told else nan,
            refused=len(outcome.refused) if self.plan is None else 0,  # it would say how many came
            # the more came, the longer it takes
            seconds=time.perf_counter() - started if self.plan is None else nan,
            **traffic(
                self.state,
                clients,
                keys=self.method.keys,
                beside=self._bytes_beside,
                all_rows=self.method.sends == "all" or self.plan is not None,  # noise is on all of them
                expected=None if self.plan is None or self.plan.local else round(self.plan.expected),
            ),
        )
        self._records.append(record.to_dict())
        return record

    def _counted_round(self, clients: int) -> Done:
        """Under privacy it is a secret how many came."""
        return silent if self.plan else counted(self.progress, f"round {self.state.round + 1}", total=clients)

    @property
    def _bytes_beside(self) -> int:
        """Of what a client tells beside its parameters; under privacy no weight, and statistics only if clipped."""
        if self.plan is not None:
            return 0 if self.plan.clip.statistics is None else NUMBER * len(self.method.statistics)
        steps = sum(self.state.federated[name].nbytes for name in self.method.candidates)
        score = NUMBER if steps else 0
        return NUMBER * (1 + len(self.method.statistics)) + steps + score

    def _prototypes(self, broadcast: Broadcast) -> Tree:
        """The embeddings of the server's own users, trained as everybody's are; what they would send is not used."""
        if self.method.prototypes is None:
            return {}
        table, own = self.method.prototypes
        held = [
            Client(f"prototype {row}", private={**self.new_private(f"prototype {row}"), own: embedding}, data=data)
            for row, (embedding, data) in enumerate(zip(broadcast.federated[table], self.prototypical, strict=True))
        ]
        outcome = self.server_engine.work(broadcast, held)
        if outcome.refused:  # all of them are needed
            raise refused_error("updates of prototypical users", outcome.refused, round=self.state.round)
        return {table: torch.stack([outcome.private[client.user][own] for client in held])}

    def _kept(self, clients: Sequence[Client], trained: Mapping[str, Tree], update: Update) -> Mapping[str, Tree]:
        """What each home keeps: all it learned (Eq. 7 of FURL), or its update's share of it (Eq. 6)."""
        if self.method.keeps == "all" or update.weight == 0:
            return trained
        return {
            client.user: {
                name: old + self._weight(client) / update.weight * (trained[client.user][name] - old)
                for name, old in client.private.items()
            }
            for client in clients
            if client.user in trained
        }

    def _weight(self, client: Client) -> float:
        return self.method.weight(client.examples) if self.plan is None else 1.0

    def rounds(self) -> Iterator[RoundRecord]:
        """The remaining rounds. A round is on disk, whole, when the next one is asked for."""
        if self.state.round < self.total_rounds:
            self._records += machine_records(self.history(), round=self.state.round, folder=self.vault.path.parent)
        while self.state.round < self.total_rounds:
            try:
                record = self.step()
            except BudgetError:  # the rounds before were paid for
                self.commit()
                raise
            if self.state.round % self.settings.commit_every == 0:
                self.commit()
            yield record
        self.commit()

    def record(self, entry: Mapping[str, Any]) -> None:
        """Remember something beside the rounds; it goes to disk with the next commit."""
        self._records.append(dict(entry))

    def commit(self) -> None:
        if self._records or self.vault.state is None:
            self.vault.commit(
                round=self.state.round,
                state=state_to_bytes(self.state),
                records=self._records,
                shows_round=not self.cohorts.secret,  # of a row, it says when the user was drawn last
            )
            self._records = []

    def history(self) -> list[dict[str, Any]]:
        return [*self.vault.history(), *self._records]

    def split(self, federation: Federation, position: int) -> Split:
        """One user's training, evaluation and test examples."""
        return split(
            federation.examples(position),
            seed=self.settings.seed,
            user=federation.users[position],
            fractions=self.settings.fractions,
        )

    def close(self) -> None:
        if "engine" in vars(self):  # it is made when it is first used
            self.engine.close()
        self.vault.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()


def spaced(examples: Examples, at_most: int | None) -> Examples:
    """All examples, or so many of them at even distances."""
    if at_most is None or len(examples) <= at_most:
        return examples
    return examples.take(np.linspace(0, len(examples) - 1, at_most).round().astype(np.int64))


def _bytes_of(batch: Batch) -> int:
    return sum(tensor.nbytes for tensor in batch.values())
