"""All that may cross a wire, and nothing else can.

There is no field for a private parameter in any of these types. An update is a weighted *sum*, so
adding two updates is how a cohort is aggregated.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from homespun.core import tree
from homespun.core.errors import MessageError
from homespun.core.tree import Tree


@dataclass(frozen=True)
class Rows:
    """Some rows of a keyed parameter: each the weighted sum of what its contributors sent."""

    index: Tensor  # int64 [rows], ascending, without repeats
    values: Tensor  # [rows, ...]
    weight: Tensor  # float64 [rows]: the weight of the contributors to each row

    def __add__(self, other: Rows) -> Rows:
        index, position = torch.unique(torch.cat([self.index, other.index]), return_inverse=True)
        values, weight = torch.cat([self.values, other.values]), torch.cat([self.weight, other.weight])
        return Rows(
            index,
            values.new_zeros(len(index), *values.shape[1:]).index_add_(0, position, values),
            weight.new_zeros(len(index)).index_add_(0, position, weight),
        )


@dataclass(frozen=True)
class Broadcast:
    """What the server sends to every client of a cohort."""

    round: int
    federated: Tree
    keyed: Tree


@dataclass(frozen=True)
class Elected:
    """Of all that clients put up for election, the one with the highest score: steps for federated parameters."""

    score: float
    steps: Tree


@dataclass(frozen=True)
class Update:
    """What comes back, summed over `clients`: weight times delta, and declared statistics."""

    round: int
    federated: Tree
    keyed: Mapping[str, Rows]
    statistics: Mapping[str, float]
    weight: float
    clients: int
    elected: Elected | None = None  # the only thing that is not a sum
    # Of shared parameters, the standard deviation of the noise on every number; the server says so when it has them all
    noise: Mapping[str, float] = field(default_factory=dict)

    def __add__(self, other: Update) -> Update:
        if self.round != other.round:
            raise MessageError(f"updates of rounds {self.round} and {other.round} cannot be added")
        if self.keyed.keys() != other.keyed.keys() or self.statistics.keys() != other.statistics.keys():
            raise MessageError("updates with different keyed parameters or statistics cannot be added")
        return Update(
            round=self.round,
            federated=tree.add(self.federated, other.federated),
            keyed={name: rows + other.keyed[name] for name, rows in self.keyed.items()},
            statistics={name: value + other.statistics[name] for name, value in self.statistics.items()},
            weight=self.weight + other.weight,
            clients=self.clients + other.clients,
            elected=_better(self.elected, other.elected),
        )


def _better(one: Elected | None, other: Elected | None) -> Elected | None:
    """The first of two equals, so that it is the same one whoever adds."""
    if one is None or other is None:
        return one or other
    return other if other.score > one.score else one


@dataclass(frozen=True)
class ServerState:
    """What the server knows between rounds."""

    round: int
    federated: Tree
    keyed: Tree
    optimizer: Tree = field(default_factory=dict)  # the server rule's own memory, such as Adam's moments

    def broadcast(self) -> Broadcast:
        return Broadcast(self.round, self.federated, self.keyed)


def require_valid(update: Update, broadcast: Broadcast, *, statistics: Sequence[str]) -> None:
    """Raise unless the update answers this broadcast and is finite throughout."""
    if update.round != broadcast.round:
        raise MessageError(f"update of round {update.round} arrived in round {broadcast.round}")
    tree.require_same_names(broadcast.federated, update.federated)
    if update.keyed.keys() != broadcast.keyed.keys():
        raise MessageError(f"keyed parameters: expected {sorted(broadcast.keyed)}, got {sorted(update.keyed)}")
    if set(update.statistics) != set(statistics):
        raise MessageError(f"statistics: declared {sorted(statistics)}, got {sorted(update.statistics)}")
    broken = _not_finite({**update.federated, **{name: rows.values for name, rows in update.keyed.items()}})
    if broken:
        raise MessageError(
            f"round {update.round}: {', '.join(broken)} became infinite or NaN in local training. "
            "Lower the learning rate, the clients' or the server's."
        )


def require_finite(state: ServerState) -> None:
    """Raise where a server's step left the numbers."""
    broken = _not_finite({**state.federated, **state.keyed})
    if broken:
        raise MessageError(
            f"round {state.round - 1}: {', '.join(broken)} became infinite or NaN in the server's step. Lower its rate."
        )


def _not_finite(tensors: Tree) -> list[str]:
    return sorted(name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all()))


# One framing for everything: a JSON header, then safetensors. Neither can carry code.


def pack(header: Mapping[str, Any], tensors: Tree) -> bytes:
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + tree.to_bytes(tensors)


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
    except (struct.error, UnicodeDecodeError, json.JSONDecodeError):
        raise MessageError("not a homespun message: its header cannot be read") from None
    return header, tree.from_bytes(data[8 + length :])


def prefixed(prefix: str, tensors: Tree) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def strip(prefix: str, tensors: Tree) -> dict[str, Tensor]:
    """The tensors under a prefix, without it."""
    start = len(prefix) + 1
    return {name[start:]: tensor for name, tensor in tensors.items() if name.startswith(prefix + "/")}


def broadcast_to_bytes(broadcast: Broadcast) -> bytes:
    tensors = {**prefixed("federated", broadcast.federated), **prefixed("keyed", broadcast.keyed)}
    return pack({"round": broadcast.round}, tensors)


def broadcast_from_bytes(data: bytes) -> Broadcast:
    header, tensors = unpack(data)
    return Broadcast(header["round"], strip("federated", tensors), strip("keyed", tensors))


def update_to_tensors(update: Update) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """An update as a JSON header and named tensors."""
    header = {
        "round": update.round,
        "statistics": dict(update.statistics),
        "weight": update.weight,
        "clients": update.clients,
    }
    tensors = prefixed("federated", update.federated)
    if update.elected is not None:
        header["score"] = update.elected.score
        tensors |= prefixed("elected", update.elected.steps)
    for name, rows in update.keyed.items():
        tensors |= prefixed(f"keyed/{name}", {"index": rows.index, "values": rows.values, "weight": rows.weight})
    return header, tensors


def update_from_tensors(header: Mapping[str, Any], tensors: Tree) -> Update:
    rows = strip("keyed", tensors)
    names = sorted({name.rpartition("/")[0] for name in rows})
    return Update(
        round=header["round"],
        federated=strip("federated", tensors),
        keyed={name: Rows(**strip(name, rows)) for name in names},
        statistics=header["statistics"],
        weight=header["weight"],
        clients=header["clients"],
        elected=Elected(header["score"], strip("elected", tensors)) if "score" in header else None,
    )


def update_to_bytes(update: Update) -> bytes:
    return pack(*update_to_tensors(update))


def update_from_bytes(data: bytes) -> Update:
    return update_from_tensors(*unpack(data))


def state_to_bytes(state: ServerState) -> bytes:
    tensors = {
        **prefixed("federated", state.federated),
        **prefixed("keyed", state.keyed),
        **prefixed("optimizer", state.optimizer),
    }
    return pack({"round": state.round}, tensors)


def state_from_bytes(data: bytes) -> ServerState:
    header, tensors = unpack(data)
    return ServerState(
        round=header["round"],
        federated=strip("federated", tensors),
        keyed=strip("keyed", tensors),
        optimizer=strip("optimizer", tensors),
    )
