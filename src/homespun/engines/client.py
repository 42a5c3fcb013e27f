"""Clients and their updates: the functions that all trainers share."""

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

Mode: TypeAlias = Literal["round", "personalize"]  # train in a round, or personalize without uploading
# Purposes from which random draws derive; they must never change.
SEED_PURPOSE: Mapping[Mode, str] = {"round": "phases", "personalize": "personalize"}


@dataclass(frozen=True)
class Client:
    """A client's data and private parameters. Neither is ever part of a message.

    After personalization, `private` may also hold the client's own copies of shared parameters.
    """

    user: str
    private: Tree
    data: Batch

    @property
    def examples(self) -> int:
        return len(next(iter(self.data.values())))


@dataclass(frozen=True)
class Outcome:
    """The result of training a cohort: the summed update for the server, and the private parameters of each client.

    A rejected client is not in `private`: it keeps its previous parameters. It is not in the sum either, unless a
    transform makes clients equal: then its update counts as zero.
    """

    update: Update
    private: Mapping[str, Tree]
    rejected: Mapping[str, str] = field(default_factory=dict)  # user -> reason
    sent_bytes: Mapping[str, int] = field(default_factory=lambda: NOTHING_SENT)  # by role, over all clients


class Trainer(Protocol):
    """Trains given clients. `done` is called with the number of clients finished since the last call."""

    def train(
        self, broadcast: Broadcast, clients: Sequence[Client], *, mode: Mode = "round", done: Done = silent
    ) -> Outcome:
        """Train every client locally. The order of `clients` does not matter."""
        ...

    def predict(self, broadcast: Broadcast, clients: Sequence[Client], *, done: Done = silent) -> list[Tensor]:
        """Return the model's output for every client's data, in the order of `clients`."""
        ...

    def close(self) -> None: ...


def require_own_roles(broadcast: Broadcast, built: BuiltMethod) -> None:
    """Raise unless the broadcast has exactly the client's shared and server parameters, with their shapes and dtypes.

    Called wherever a broadcast reaches clients, so that a server that lists a private parameter as federated does not
    get it back.
    """
    faults = []
    trees = {Role.FEDERATED: broadcast.federated, Role.KEYED: broadcast.keyed, Role.SERVER: broadcast.server}
    for role, sent in trees.items():
        own = built.partition.select(built.initial, role)
        missing = sorted(own.keys() - sent.keys())
        faults += [f"missing {role.value} {missing}"] if missing else []
        for name in sorted(sent):
            if name not in own:
                own_role = built.partition.roles.get(name)
                expected = own_role.value if own_role else "unknown"
                faults.append(f"{name!r} is listed as {role.value}, but is {expected} here")
            elif sent[name].shape != own[name].shape:
                shapes = tuple(sent[name].shape), tuple(own[name].shape)
                faults.append(f"{name!r}: expected shape {shapes[1]}, got {shapes[0]}")
            elif sent[name].dtype != own[name].dtype:
                faults.append(f"{name!r}: expected {own[name].dtype}, got {sent[name].dtype}")
    if faults:
        raise_faults(MessageError, f"broadcast of round {broadcast.round} rejected, nothing is uploaded", faults)


def sort_by_user(clients: Sequence[Client]) -> list[Client]:
    """Sort clients by user, because sums of floats depend on the order of their terms."""
    return sorted(clients, key=lambda client: client.user)


def empty_update(built: BuiltMethod, broadcast: Broadcast, *, exact: bool = False) -> Update:
    """Return the sum over no clients. With `exact` it is float64, and so is every sum with it: under differential
    privacy the rounding errors of a sum, which depend on every client, must not disclose anything."""
    no_rows = torch.zeros(0, dtype=torch.int64)

    def zeros(tensor: Tensor) -> Tensor:
        return torch.zeros_like(tensor, dtype=torch.float64 if exact else None)

    return Update(
        round=broadcast.round,
        federated={name: zeros(value) for name, value in broadcast.federated.items()},
        keyed={
            name: Rows(no_rows, zeros(table[:0]), torch.zeros(0, dtype=torch.float64))
            for name, table in broadcast.keyed.items()
        },
        metrics=dict.fromkeys(METRICS, 0.0),
        weight=0.0,
        clients=0,
        statistics={name: zeros(broadcast.server[name]) for name in sums(built.method.local.statistics)},
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
    """Return what one client uploads: weight times delta, for keyed parameters of touched rows only, and the declared
    statistics.

    The client's own partition decides what may be uploaded, not the broadcast. The client halves of transforms are
    applied later, by `Intake.add`.
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
            name: (trained[name] - value).mul_(weight)
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
    """Compute one client's statistics that are summed over clients, before weighting."""
    declared = sums(built.method.local.statistics)
    if not declared:
        return {}
    generator = seeds.torch_generator(seed, "release", broadcast.round, client.user)
    return {name: one.compute(trained, generator) for name, one in declared.items()}


def compute_bests(built: BuiltMethod, trained: Tree) -> dict[str, Candidate]:
    """Compute one client's statistics of which the cohort's best is kept."""
    declared = bests(built.method.local.statistics)
    return {name: Candidate(one.score(trained), one.compute(trained)) for name, one in declared.items()}


def touched_rows(built: BuiltMethod, client: Client, name: str, *, moved: Tensor) -> Tensor:
    """Return the rows that a client uploads: those its examples refer to or, if the column of row numbers is derived
    during training, those that changed."""
    if built.method.model.upload_rows == "all":
        return torch.arange(len(moved))
    column = built.method.model.keys[name]
    if column in client.data:
        named: Tensor = torch.unique(client.data[column].long())
        return named
    rows: Tensor = moved.flatten(1).any(dim=1).nonzero()[:, 0]
    return rows


def with_derived(built: BuiltMethod, parameters: Tree, data: Batch) -> Batch:
    """Add the derived columns, computed from the client's parameters, to its examples."""
    if not built.method.model.derived:
        return data
    with torch.no_grad():
        return {**data, **{name: derive(parameters, data) for name, derive in built.method.model.derived.items()}}


def gradients_of(objective: Tensor, leaves: Tree) -> dict[str, Tensor | None]:
    """The gradient of each leaf; None for one that the objective does not depend on."""
    if not objective.requires_grad:
        return dict.fromkeys(leaves)
    found = torch.autograd.grad(objective, list(leaves.values()), allow_unused=True)
    return dict(zip(leaves, found, strict=True))


def phases_of(built: BuiltMethod, mode: Mode) -> Sequence[LocalPhase]:
    """Return the phases of a round, or those of personalization."""
    return built.method.local.phases if mode == "round" else built.method.personalize.phases


def can_stack(built: BuiltMethod, clients: Sequence[Client]) -> bool:
    """Whether these clients' private parameters can be stacked: all clients have the same names, shapes and dtypes, and
    all private parameters of the model. This is checked only if the method lets private parameters vary."""
    if not built.method.model.private_varies or not clients:
        return True
    forms = [{name: (value.shape, value.dtype) for name, value in client.private.items()} for client in clients]
    return all(form == forms[0] for form in forms) and forms[0].keys() >= set(built.partition.names(Role.PRIVATE))


def private_names(built: BuiltMethod, private: Tree) -> list[str]:
    """Return the names of private parameters in a tree that may also hold copies of shared parameters."""
    if not built.method.model.private_varies:
        return list(built.partition.names(Role.PRIVATE))
    return [name for name in private if built.partition.role_of(name) is Role.PRIVATE]


def trainable_names(parameters: Tree) -> list[str]:
    """Return the names of floating-point parameters. Integers, such as a user's own words, are never trained."""
    return [name for name, value in parameters.items() if value.is_floating_point()]


def select_kept(built: BuiltMethod, broadcast: Broadcast, trained: Tree, *, mode: Mode) -> dict[str, Tensor]:
    """Select the private parameters and, after personalization, the client's copies of shared ones that changed."""
    kept = {name: trained[name] for name in private_names(built, trained)}
    if mode == "personalize":
        shared = {**broadcast.federated, **broadcast.keyed}
        kept |= {name: trained[name] for name, value in shared.items() if not torch.equal(trained[name], value)}
    return kept
