"""The messages between server and clients, and their encoding as bytes.

None of these types has a field for a private parameter. An update is a weighted *sum*: a cohort is aggregated by adding
its updates.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from homespun.core import tree
from homespun.core.errors import MessageError
from homespun.core.tree import Tree

LARGEST_NUMBER = 1e300  # limit of numbers in a header; sums of many stay finite in float64


@dataclass(frozen=True)
class Rows:
    """Some rows of a keyed parameter. Each row is the weighted sum of its contributors' deltas."""

    index: Tensor  # int64 [rows], ascending, without repeats
    values: Tensor  # [rows, ...]
    weight: Tensor  # float64 [rows]: the total weight of the contributors to each row

    def __add__(self, other: Rows) -> Rows:
        index, position = torch.unique(torch.cat([self.index, other.index]), return_inverse=True)
        values, weight = torch.cat([self.values, other.values]), torch.cat([self.weight, other.weight])
        return Rows(
            index,
            values.new_zeros(len(index), *values.shape[1:]).index_add_(0, position, values),
            weight.new_zeros(len(index)).index_add_(0, position, weight),
        )


def _sizes(**trees: Tree) -> str:
    """How many numbers each tree has; a message never prints its tensors."""
    counts = {name: sum(value.numel() for value in one.values()) for name, one in trees.items() if one}
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "no"


@dataclass(frozen=True, repr=False)
class Broadcast:
    """What the server sends to every client of a cohort.

    Example:
        >>> Broadcast(3, federated={"w": torch.zeros(2)}, keyed={}).parameters
        {'w': tensor([0., 0.])}
    """

    round: int
    federated: Tree
    keyed: Tree
    server: Tree = field(default_factory=dict)  # parameters that only the server changes

    @property
    def parameters(self) -> dict[str, Tensor]:
        """All parameters in it, by name."""
        return {**self.federated, **self.keyed, **self.server}

    def __repr__(self) -> str:
        sizes = _sizes(federated=self.federated, keyed=self.keyed, server=self.server)
        return f"<Broadcast of round {self.round}: {sizes} numbers>"


@dataclass(frozen=True)
class Candidate:
    """One client's value of a statistic of which the best-scoring one is kept."""

    score: float
    value: Tensor


METRICS = ("loss", "examples")  # every update has exactly these


@dataclass(frozen=True, repr=False)
class Update:
    """What clients upload, summed over `clients`: weight times delta, metrics, and declared statistics.

    Example:
        >>> one = Update(0, {"w": torch.tensor([2.0])}, {}, {"loss": 1.0, "examples": 2.0}, weight=2.0, clients=1)
        >>> (one + one).federated["w"], (one + one).clients
        (tensor([4.]), 2)
    """

    round: int
    federated: Tree
    keyed: Mapping[str, Rows]
    metrics: Mapping[str, float]
    weight: float
    clients: int
    statistics: Tree = field(default_factory=dict)  # weight times value
    best: Mapping[str, Candidate] = field(default_factory=dict)  # the only part that is not a sum
    # Standard deviation of the noise on each number, by the name of a parameter or statistic; set by the server
    noise: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        rows = {name: rows.values for name, rows in self.keyed.items()}
        sizes = _sizes(federated=self.federated, keyed=rows, statistics=self.statistics)
        return f"<Update of round {self.round}, {self.clients} clients: {sizes} numbers>"

    def __add__(self, other: Update) -> Update:
        if self.round != other.round:
            raise MessageError(f"updates of rounds {self.round} and {other.round} cannot be added")
        if self.keyed.keys() != other.keyed.keys() or self.metrics.keys() != other.metrics.keys():
            raise MessageError("updates with different keyed parameters or metrics cannot be added")
        return Update(
            round=self.round,
            federated=tree.add(self.federated, other.federated),
            keyed={name: rows + other.keyed[name] for name, rows in self.keyed.items()},
            metrics={name: value + other.metrics[name] for name, value in self.metrics.items()},
            weight=self.weight + other.weight,
            clients=self.clients + other.clients,
            statistics=tree.add(self.statistics, other.statistics),
            best=_select_best(self.best, other.best),
        )


def _select_best(one: Mapping[str, Candidate], other: Mapping[str, Candidate]) -> dict[str, Candidate]:
    """Keep the candidate with the higher score; of equal ones the first, so that grouping does not matter."""
    better = {name: best for name, best in other.items() if name not in one or best.score > one[name].score}
    return {**one, **better}


@dataclass(frozen=True, repr=False)
class ServerState:
    """The server's state between rounds.

    Example:
        >>> ServerState(3, federated={"w": torch.zeros(2)}, keyed={}).broadcast().round
        3
    """

    round: int
    federated: Tree
    keyed: Tree
    optimizer: Tree = field(default_factory=dict)  # the state of the server rule, such as Adam's moments
    server: Tree = field(default_factory=dict)  # parameters that no client trains

    def broadcast(self) -> Broadcast:
        return Broadcast(self.round, self.federated, self.keyed, self.server)

    def __repr__(self) -> str:
        sizes = _sizes(federated=self.federated, keyed=self.keyed, server=self.server, optimizer=self.optimizer)
        return f"<ServerState after {self.round} rounds: {sizes} numbers>"


def require_valid(
    update: Update,
    broadcast: Broadcast,
    *,
    statistics: Collection[str] = (),
    best: Collection[str] = (),
    clients: int | None = None,
) -> None:
    """Raise unless the update belongs to this broadcast, has these statistics, is finite, and sums at most `clients`
    updates."""
    if update.round != broadcast.round:
        raise MessageError(f"update of round {update.round} arrived in round {broadcast.round}")
    if update.weight < 0:
        raise MessageError(f"update with a negative weight: {update.weight:g}")
    if clients is not None and update.clients > clients:
        raise MessageError(f"update of {update.clients} clients, but only {clients} were asked")
    if update.metrics.keys() != set(METRICS):
        raise MessageError(f"metrics: expected {sorted(METRICS)}, got {sorted(update.metrics)}")
    if update.statistics.keys() != set(statistics) or update.best.keys() - set(best):
        declared, got = sorted([*statistics, *best]), sorted([*update.statistics, *update.best])
        raise MessageError(f"statistics: declared {declared}, got {got}")
    tree.require_same_names(broadcast.federated, update.federated)
    if update.keyed.keys() != broadcast.keyed.keys():
        raise MessageError(f"keyed parameters: expected {sorted(broadcast.keyed)}, got {sorted(update.keyed)}")
    for name, value in broadcast.federated.items():
        _require_type(name, update.federated[name], like=value)
    found = {**update.statistics, **{name: one.value for name, one in update.best.items()}}
    for name, value in found.items():
        _require_type(name, value, like=broadcast.server[name])
        if value.shape != broadcast.server[name].shape:
            shapes = tuple(broadcast.server[name].shape), tuple(value.shape)
            raise MessageError(f"statistic {name!r}: expected shape {shapes[0]}, got {shapes[1]}")
    for name, table in broadcast.keyed.items():
        rows = update.keyed[name]
        _require_type(name, rows.values, like=table)
        if tuple(rows.values.shape) != (len(rows.index), *table.shape[1:]):
            raise MessageError(
                f"rows of {name!r}: {len(rows.index)} of a table {tuple(table.shape)}, got {tuple(rows.values.shape)}"
            )
        if len(rows.index) and int(rows.index[-1]) >= len(table):  # rows are ascending
            raise MessageError(f"{name!r} has no row {int(rows.index[-1])}")
    non_finite = tree.non_finite(
        {**update.federated, **{name: rows.values for name, rows in update.keyed.items()}, **found}
    )
    if non_finite:
        raise MessageError(
            f"round {update.round}: {', '.join(non_finite)} became infinite or NaN in local training. "
            "Lower the learning rate of the clients or of the server."
        )


def _require_type(name: str, found: Tensor, *, like: Tensor) -> None:
    """Require the dtype of `like`, or float64: under differential privacy sums are float64."""
    if found.dtype not in (like.dtype, torch.float64):
        raise MessageError(f"{name!r} is {found.dtype}, not {like.dtype}")


def require_finite(state: ServerState) -> None:
    """Raise if the server's step produced NaN or infinity."""
    non_finite = tree.non_finite({**state.federated, **state.keyed, **state.server})
    if non_finite:
        raise MessageError(
            f"round {state.round - 1}: {', '.join(non_finite)} became infinite or NaN in the server's step. "
            "Lower its learning rate."
        )


# Every message is a JSON header followed by safetensors. Neither can carry code.


def pack(header: Mapping[str, Any], tensors: Tree) -> bytes:
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + tree.to_bytes(tensors)


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the header and tensors of a message. This and all decoders below raise MessageError on malformed input."""
    try:
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
    except (
        struct.error,
        ValueError,
        RecursionError,
    ):  # ValueError: not JSON or UTF-8, too many digits
        raise MessageError("not a homespun message: its header cannot be read") from None
    if not isinstance(header, dict):
        raise MessageError(f"not a homespun message: its header is a {type(header).__name__}, not an object")
    return header, tree.from_bytes(data[8 + length :])


def _count(header: Mapping[str, Any], name: str) -> int:
    """Read an integer field from 0 to 2^53, the range that every JSON reader represents exactly."""
    value = header.get(name)
    if type(value) is not int or not 0 <= value <= 2**53:
        raise MessageError(f"field {name!r}: expected an integer from 0 to 2^53")
    return value


def _number(header: Mapping[str, Any], name: str) -> float:
    """Read a finite number field."""
    value: Any = header.get(name)
    # the comparison is exact for integers of any size, where isfinite would overflow
    if type(value) not in (int, float) or not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:
        raise MessageError(f"field {name!r}: expected a finite number")
    number: float = value
    return number


def _require_prefixes(tensors: Tree, *prefixes: str) -> None:
    """Raise unless the name of every tensor has one of these prefixes."""
    for name in tensors:
        prefix, _, rest = name.partition("/")
        if prefix not in prefixes or not rest:
            raise MessageError(f"unexpected tensor {name!r} in this kind of message")


def add_prefix(prefix: str, tensors: Tree) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def strip_prefix(prefix: str, tensors: Tree) -> dict[str, Tensor]:
    """Return the tensors with this prefix, without it in their names."""
    start = len(prefix) + 1
    return {name[start:]: tensor for name, tensor in tensors.items() if name.startswith(prefix + "/")}


def broadcast_to_tensors(broadcast: Broadcast) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors = {
        **add_prefix("federated", broadcast.federated),
        **add_prefix("keyed", broadcast.keyed),
        **add_prefix("server", broadcast.server),
    }
    return {"round": broadcast.round}, tensors


def broadcast_to_bytes(broadcast: Broadcast) -> bytes:
    return pack(*broadcast_to_tensors(broadcast))


def broadcast_from_bytes(data: bytes) -> Broadcast:
    return broadcast_from_tensors(*unpack(data))


def broadcast_from_tensors(header: Mapping[str, Any], tensors: Tree) -> Broadcast:
    _require_prefixes(tensors, "federated", "keyed", "server")
    trees = (strip_prefix(prefix, tensors) for prefix in ("federated", "keyed", "server"))
    return Broadcast(_count(header, "round"), *trees)


def update_to_tensors(update: Update) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Encode an update as a JSON header and named tensors."""
    header = {
        "round": update.round,
        "metrics": dict(update.metrics),
        "weight": update.weight,
        "clients": update.clients,
        "scores": {name: one.score for name, one in update.best.items()},
    }
    tensors = {
        **add_prefix("federated", update.federated),
        **add_prefix("statistics", update.statistics),
        **add_prefix("best", {name: one.value for name, one in update.best.items()}),
    }
    for name, rows in update.keyed.items():
        tensors |= add_prefix(f"keyed/{name}", {"index": rows.index, "values": rows.values, "weight": rows.weight})
    return header, tensors


def update_from_tensors(header: Mapping[str, Any], tensors: Tree) -> Update:
    _require_prefixes(tensors, "federated", "keyed", "statistics", "best")
    keyed, best = strip_prefix("keyed", tensors), strip_prefix("best", tensors)
    metrics, scores = header.get("metrics"), header.get("scores")
    if not isinstance(metrics, dict) or not isinstance(scores, dict):
        raise MessageError("metrics and scores must be objects of names and numbers")
    if best.keys() != scores.keys():
        raise MessageError(f"scores for {sorted(scores)}, but values for {sorted(best)}")
    return Update(
        round=_count(header, "round"),
        federated=strip_prefix("federated", tensors),
        keyed={
            name: _rows(name, strip_prefix(name, keyed)) for name in sorted({key.rpartition("/")[0] for key in keyed})
        },
        metrics={name: _number(metrics, name) for name in metrics},
        weight=_number(header, "weight"),
        clients=_count(header, "clients"),
        statistics=strip_prefix("statistics", tensors),
        best={name: Candidate(_number(scores, name), value) for name, value in best.items()},
    )


def _rows(name: str, tensors: Tree) -> Rows:
    """Decode rows and check that index, values and weights match."""
    if not name or tensors.keys() != {"index", "values", "weight"}:
        raise MessageError(f"rows of {name!r}: expected index, values and weight, got {sorted(tensors)}")
    rows = Rows(**tensors)
    index, weight = rows.index, rows.weight
    if index.dtype != torch.int64 or index.dim() != 1 or bool((index.diff() <= 0).any()) or bool((index < 0).any()):
        raise MessageError(f"rows of {name!r}: the index must be ascending int64 row numbers")
    if rows.values.dim() == 0 or len(rows.values) != len(index):
        raise MessageError(f"rows of {name!r}: {len(index)} row numbers for values of shape {tuple(rows.values.shape)}")
    if weight.dtype != torch.float64 or weight.shape != index.shape or not bool(torch.isfinite(weight).all()):
        raise MessageError(f"rows of {name!r}: expected one finite float64 weight per row")
    return rows


def update_to_bytes(update: Update) -> bytes:
    return pack(*update_to_tensors(update))


def update_from_bytes(data: bytes) -> Update:
    return update_from_tensors(*unpack(data))


def state_to_bytes(state: ServerState) -> bytes:
    tensors = {
        **add_prefix("federated", state.federated),
        **add_prefix("keyed", state.keyed),
        **add_prefix("optimizer", state.optimizer),
        **add_prefix("server", state.server),
    }
    return pack({"round": state.round}, tensors)


def state_from_bytes(data: bytes) -> ServerState:
    header, tensors = unpack(data)
    _require_prefixes(tensors, "federated", "keyed", "optimizer", "server")
    return ServerState(
        round=_count(header, "round"),
        federated=strip_prefix("federated", tensors),
        keyed=strip_prefix("keyed", tensors),
        optimizer=strip_prefix("optimizer", tensors),
        server=strip_prefix("server", tensors),
    )
