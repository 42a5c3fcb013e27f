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

LARGEST_NUMBER = 1e300  # of a number in a header: a sum of many stays finite in float64


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


def require_valid(
    update: Update,
    broadcast: Broadcast,
    *,
    statistics: Sequence[str],
    clients: int | None = None,
    candidates: Sequence[str] | None = None,
) -> None:
    """Raise unless the update answers this broadcast and is finite throughout. It is of at most `clients` clients, and
    one that is elected has steps for `candidates`; None: any."""
    if update.round != broadcast.round:
        raise MessageError(f"update of round {update.round} arrived in round {broadcast.round}")
    if update.weight < 0:
        raise MessageError(f"an update with a weight of {update.weight:g}")
    if clients is not None and update.clients > clients:
        raise MessageError(f"an update of {update.clients} clients, where {clients} were asked")
    elected = () if update.elected is None else tuple(update.elected.steps)
    if candidates is not None and set(elected) - set(candidates):
        raise MessageError(f"an update with steps for {sorted(elected)}, where {sorted(candidates)} were expected")
    tree.require_same_names(broadcast.federated, update.federated)
    if update.keyed.keys() != broadcast.keyed.keys():
        raise MessageError(f"keyed parameters: expected {sorted(broadcast.keyed)}, got {sorted(update.keyed)}")
    if set(update.statistics) != set(statistics):
        raise MessageError(f"statistics: declared {sorted(statistics)}, got {sorted(update.statistics)}")
    for name, value in broadcast.federated.items():
        _require_type(name, update.federated[name], like=value)
    for name, table in broadcast.keyed.items():
        rows = update.keyed[name]
        _require_type(name, rows.values, like=table)
        if tuple(rows.values.shape) != (len(rows.index), *table.shape[1:]):
            raise MessageError(
                f"rows of {name!r}: {len(rows.index)} of a table {tuple(table.shape)}, got {tuple(rows.values.shape)}"
            )
        if len(rows.index) and int(rows.index[-1]) >= len(table):  # they ascend
            raise MessageError(f"{name!r} has no row {int(rows.index[-1])}")
    broken = _not_finite({**update.federated, **{name: rows.values for name, rows in update.keyed.items()}})
    if broken:
        raise MessageError(
            f"round {update.round}: {', '.join(broken)} became infinite or NaN in local training. "
            "Lower the learning rate, the clients' or the server's."
        )


def _require_type(name: str, found: Tensor, *, like: Tensor) -> None:
    """A sum may be float64, whatever it is the sum of: under privacy it is."""
    if found.dtype not in (like.dtype, torch.float64):
        raise MessageError(f"{name!r} is {found.dtype}, not {like.dtype}")


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
    """A message's header and tensors. What is wrong with them is a MessageError, here and in every decoder below."""
    try:
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
    except (struct.error, ValueError, RecursionError):  # ValueError: no JSON, no UTF-8, a number of too many digits
        raise MessageError("not a homespun message: its header cannot be read") from None
    if not isinstance(header, dict):
        raise MessageError(f"not a homespun message: its header is a {type(header).__name__}, not an object")
    return header, tree.from_bytes(data[8 + length :])


def _count(header: Mapping[str, Any], name: str) -> int:
    """A field that counts something: a whole number from 0 to 2^53, which every JSON reader has exactly."""
    value = header.get(name)
    if type(value) is not int or not 0 <= value <= 2**53:
        raise MessageError(f"its {name} is not a whole number from 0 to 2^53")
    return value


def _number(header: Mapping[str, Any], name: str) -> float:
    """A field that is a finite number."""
    value: Any = header.get(name)
    # comparing is exact for integers of any size; isfinite would overflow
    if type(value) not in (int, float) or not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:
        raise MessageError(f"its {name!r} is not a finite number")
    number: float = value
    return number


def _require_places(tensors: Tree, *places: str) -> None:
    """Every tensor is under one of these prefixes."""
    for name in tensors:
        place, _, rest = name.partition("/")
        if place not in places or not rest:
            raise MessageError(f"a tensor {name!r}, which this kind of message has no place for")


def prefixed(prefix: str, tensors: Tree) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def strip(prefix: str, tensors: Tree) -> dict[str, Tensor]:
    """The tensors under a prefix, without it."""
    start = len(prefix) + 1
    return {name[start:]: tensor for name, tensor in tensors.items() if name.startswith(prefix + "/")}


def broadcast_to_tensors(broadcast: Broadcast) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors = {**prefixed("federated", broadcast.federated), **prefixed("keyed", broadcast.keyed)}
    return {"round": broadcast.round}, tensors


def broadcast_to_bytes(broadcast: Broadcast) -> bytes:
    return pack(*broadcast_to_tensors(broadcast))


def broadcast_from_bytes(data: bytes) -> Broadcast:
    return broadcast_from_tensors(*unpack(data))


def broadcast_from_tensors(header: Mapping[str, Any], tensors: Tree) -> Broadcast:
    _require_places(tensors, "federated", "keyed")
    return Broadcast(_count(header, "round"), strip("federated", tensors), strip("keyed", tensors))


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
    _require_places(tensors, "federated", "keyed", "elected")
    keyed, steps = strip("keyed", tensors), strip("elected", tensors)
    statistics = header.get("statistics")
    if not isinstance(statistics, dict):
        raise MessageError("its statistics are not an object of names and numbers")
    if steps and "score" not in header:
        raise MessageError("a candidate's steps without a score")
    return Update(
        round=_count(header, "round"),
        federated=strip("federated", tensors),
        keyed={name: _rows(name, strip(name, keyed)) for name in sorted({key.rpartition("/")[0] for key in keyed})},
        statistics={name: _number(statistics, name) for name in statistics},
        weight=_number(header, "weight"),
        clients=_count(header, "clients"),
        elected=Elected(_number(header, "score"), steps) if "score" in header else None,
    )


def _rows(name: str, tensors: Tree) -> Rows:
    """Rows whose index, values and weights fit each other."""
    if not name or tensors.keys() != {"index", "values", "weight"}:
        raise MessageError(f"rows of {name!r} have {sorted(tensors)}, not index, values and weight")
    rows = Rows(**tensors)
    index, weight = rows.index, rows.weight
    if index.dtype != torch.int64 or index.dim() != 1 or bool((index.diff() <= 0).any()) or bool((index < 0).any()):
        raise MessageError(f"rows of {name!r} are not ascending int64 row numbers")
    if rows.values.dim() == 0 or len(rows.values) != len(index):
        raise MessageError(f"rows of {name!r}: {len(index)} row numbers for values of shape {tuple(rows.values.shape)}")
    if weight.dtype != torch.float64 or weight.shape != index.shape or not bool(torch.isfinite(weight).all()):
        raise MessageError(f"rows of {name!r} do not have one finite float64 weight each")
    return rows


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
    _require_places(tensors, "federated", "keyed", "optimizer")
    return ServerState(
        round=_count(header, "round"),
        federated=strip("federated", tensors),
        keyed=strip("keyed", tensors),
        optimizer=strip("optimizer", tensors),
    )
