"""Clients, and what trainers make of them; shared by all trainers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from homespun.core import seeds
from homespun.core.errors import MessageError, raise_faults
from homespun.core.intake import Intake
from homespun.core.messages import METRICS, Broadcast, Candidate, Rows, Update
from homespun.core.method import Batch, BuiltMethod, LocalPhase
from homespun.core.progress import Done, silent
from homespun.core.roles import Role
from homespun.core.statistics import bests, sums
from homespun.core.transforms import NO_TRANSFORMS, NOTHING_SENT, Transforms
from homespun.core.tree import Tree

Mode: TypeAlias = Literal["round", "personalize"]  # train in a round, or personalize a client by itself
# Part of what random draws derive from.
SEED_PURPOSE: Mapping[Mode, str] = {"round": "phases", "personalize": "personalize"}


@dataclass(frozen=True)
class Client:
    """One home: its own data and its own parameters. Neither is ever part of a message.

    `private` may also hold the home's own copies of shared parameters, from personalizing.
    """

    user: str
    private: Tree
    data: Batch

    @property
    def examples(self) -> int:
        return len(next(iter(self.data.values())))


@dataclass(frozen=True)
class Outcome:
    """A cohort's work: the summed update for the server, and what stays at each client.

    A refused client is not in `private`: it keeps what it had before its training failed. It is not in the sum either,
    unless a transform makes clients equal: then its update counts as zero.
    """

    update: Update
    private: Mapping[str, Tree]
    rejected: Mapping[str, str] = field(default_factory=dict)  # user -> why
    sent_bytes: Mapping[str, int] = field(default_factory=lambda: NOTHING_SENT)  # by role, over all clients


class Trainer(Protocol):
    """Trains the clients it is handed. `done` is called with how many more of them are finished."""

    def train(
        self, broadcast: Broadcast, clients: Sequence[Client], *, mode: Mode = "round", done: Done = silent
    ) -> Outcome:
        """Local training of every client. The order of `clients` does not matter."""
        ...

    def predict(self, broadcast: Broadcast, clients: Sequence[Client], *, done: Done = silent) -> list[Tensor]:
        """The model's output for every client's data, in the order of `clients`."""
        ...

    def close(self) -> None: ...


def require_own_roles(broadcast: Broadcast, built: BuiltMethod) -> None:
    """Raise unless the broadcast has exactly this client's shared and server parameters, in their shapes and dtypes.

    Called where a broadcast reaches clients. A client sends what its own partition calls shared; a server that lists a
    private parameter as federated would otherwise get it back.
    """
    faults = []
    trees = {Role.FEDERATED: broadcast.federated, Role.KEYED: broadcast.keyed, Role.SERVER: broadcast.server}
    for role, sent in trees.items():
        own = built.partition.select(built.initial, role)
        missing = sorted(own.keys() - sent.keys())
        faults += [f"it lacks {role.value} {missing}"] if missing else []
        for name in sorted(sent):
            if name not in own:
                here = built.partition.roles.get(name)
                faults.append(f"it has {name!r} as {role.value}, which is {here.value if here else 'unknown'} here")
            elif sent[name].shape != own[name].shape:
                shapes = tuple(sent[name].shape), tuple(own[name].shape)
                faults.append(f"it has {name!r} of shape {shapes[0]} where {shapes[1]} was expected")
            elif sent[name].dtype != own[name].dtype:
                faults.append(f"it has {name!r} of {sent[name].dtype} where {own[name].dtype} was expected")
    if faults:
        raise_faults(MessageError, f"broadcast of round {broadcast.round}: refused, nothing is sent back", faults)


def sort_by_user(clients: Sequence[Client]) -> list[Client]:
    """Sums of floats depend on their order; this makes it the same for the same cohort."""
    return sorted(clients, key=lambda client: client.user)


def empty_update(built: BuiltMethod, broadcast: Broadcast, *, exact: bool = False) -> Update:
    """The sum over no clients. An exact one is of float64, and so is what is added to it: the rounding errors of a sum
    depend on every client, and noise has to hide them too."""
    none = torch.zeros(0, dtype=torch.int64)

    def in_sum(tensor: Tensor) -> Tensor:
        return torch.zeros_like(tensor, dtype=torch.float64 if exact else None)

    return Update(
        round=broadcast.round,
        federated={name: in_sum(value) for name, value in broadcast.federated.items()},
        keyed={
            name: Rows(none, in_sum(table[:0]), torch.zeros(0, dtype=torch.float64))
            for name, table in broadcast.keyed.items()
        },
        metrics=dict.fromkeys(METRICS, 0.0),
        weight=0.0,
        clients=0,
        statistics={name: in_sum(broadcast.server[name]) for name in sums(built.method.local.statistics)},
    )


def new_intake(built: BuiltMethod, broadcast: Broadcast, transforms: Transforms) -> Intake:
    equal = transforms.equal_clients
    return Intake(
        broadcast,
        empty_update(built, broadcast, exact=equal),
        statistics=sums(built.method.local.statistics),
        best=bests(built.method.local.statistics),
        weight=1.0 if equal else None,
        substitute=replace(empty_update(built, broadcast), weight=1.0, clients=1) if equal else None,
    )


def client_weight(built: BuiltMethod, client: Client, transforms: Transforms) -> float:
    return 1.0 if transforms.equal_clients else built.method.local.client_weight(client.examples)


def client_update(
    built: BuiltMethod,
    broadcast: Broadcast,
    client: Client,
    *,
    trained: Tree,
    metrics: Mapping[str, float],
    seed: int,
    transforms: Transforms = NO_TRANSFORMS,
) -> Update:
    """What one client sends: weight times delta, of touched rows only where a parameter is keyed, and the declared
    statistics.

    The client's own partition says what may be sent, not the broadcast. The client halves of transforms come later,
    when the update is taken in.
    """
    weight = client_weight(built, client, transforms)
    statistics = compute_sums(built, broadcast, client, trained, seed)
    roles, keyed = built.partition.roles, {}
    for name, table in broadcast.keyed.items():
        if roles.get(name) is not Role.KEYED:
            continue
        touched = touched_rows(built, client, name, moved=trained[name] != table)
        keyed[name] = Rows(
            touched,
            weight * (trained[name][touched] - table[touched]),
            torch.full((len(touched),), weight, dtype=torch.float64),
        )
    return Update(
        round=broadcast.round,
        federated={
            name: weight * (trained[name] - value)
            for name, value in broadcast.federated.items()
            if roles.get(name) is Role.FEDERATED
        },
        keyed=keyed,
        metrics=metrics,
        weight=weight,
        clients=1,
        statistics={name: weight * value for name, value in statistics.items()},
        best=compute_bests(built, trained),
    )


def compute_sums(
    built: BuiltMethod, broadcast: Broadcast, client: Client, trained: Tree, seed: int
) -> dict[str, Tensor]:
    """One client's statistics that are summed over clients, without its weight."""
    declared = sums(built.method.local.statistics)
    if not declared:
        return {}
    generator = seeds.torch_generator(seed, "release", broadcast.round, client.user)
    return {name: one.compute(trained, generator) for name, one in declared.items()}


def compute_bests(built: BuiltMethod, trained: Tree) -> dict[str, Candidate]:
    """One client's statistics of which the cohort's best is kept."""
    declared = bests(built.method.local.statistics)
    return {name: Candidate(one.score(trained), one.compute(trained)) for name, one in declared.items()}


def touched_rows(built: BuiltMethod, client: Client, name: str, *, moved: Tensor) -> Tensor:
    """The rows that a client sends: those its examples name, or, where the column that names them was worked out in
    training, those that moved."""
    if built.method.model.upload_rows == "all":
        return torch.arange(len(moved))
    column = built.method.model.keys[name]
    if column in client.data:
        named: Tensor = torch.unique(client.data[column].long())
        return named
    rows: Tensor = moved.flatten(1).any(dim=1).nonzero()[:, 0]
    return rows


def with_derived(built: BuiltMethod, parameters: Tree, data: Batch) -> Batch:
    """A client's examples with the columns that it computes from the parameters it sees."""
    if not built.method.model.derived:
        return data
    with torch.no_grad():
        return {**data, **{name: derive(parameters, data) for name, derive in built.method.model.derived.items()}}


def phases_of(built: BuiltMethod, mode: Mode) -> Sequence[LocalPhase]:
    """The gradient steps of a round, or those that personalization ends with."""
    return built.method.local.phases if mode == "round" else built.method.personalize.phases


def can_stack(built: BuiltMethod, clients: Sequence[Client]) -> bool:
    """Whether these clients' private parameters can be stacked: the same names, shapes and types for all, and all that
    the model has. Only a method whose private parameters vary has to be looked at."""
    if not built.method.model.private_varies or not clients:
        return True
    forms = [{name: (value.shape, value.dtype) for name, value in client.private.items()} for client in clients]
    return all(form == forms[0] for form in forms) and forms[0].keys() >= set(built.partition.names(Role.PRIVATE))


def private_names(built: BuiltMethod, private: Tree) -> list[str]:
    """The names of what is private in a tree, which may also hold copies of shared parameters."""
    if not built.method.model.private_varies:
        return list(built.partition.names(Role.PRIVATE))
    return [name for name in private if built.partition.role_of(name) is Role.PRIVATE]


def trainable_names(parameters: Tree) -> list[str]:
    """Integers, such as a user's own words, are never trained."""
    return [name for name, value in parameters.items() if value.is_floating_point()]


def select_kept(built: BuiltMethod, broadcast: Broadcast, trained: Tree, *, mode: Mode) -> dict[str, Tensor]:
    """The private parameters and, from personalizing, the home's own copies of the shared ones that changed."""
    kept = {name: trained[name] for name in private_names(built, trained)}
    if mode == "personalize":
        shared = {**broadcast.federated, **broadcast.keyed}
        kept |= {name: trained[name] for name, value in shared.items() if not torch.equal(trained[name], value)}
    return kept
