"""Validates the updates of a round and sums the valid ones.

An invalid update, accidental or malicious, must not change the state or stop the round for the other clients. The whole
update is rejected before anything is clipped or added, and the reason is recorded. Under differential privacy an update
of zeros replaces it: a missing update would disclose, without noise, that training failed on this client's data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from homespun.core.errors import MessageError
from homespun.core.messages import LARGEST_NUMBER, METRICS, Broadcast, Candidate, Rows, Update
from homespun.core.transforms import NO_TRANSFORMS, NOTHING_SENT, Transforms, add_bytes
from homespun.core.tree import Tree, non_finite

MAX_WEIGHT = 1e8  # more examples than any client has
MAX_STEP = 1e9  # largest change of one number per unit of weight; sums over many clients stay finite


@dataclass
class Intake:
    """The sum of one round's updates so far, the users in it, and the rejected users with the reasons."""

    broadcast: Broadcast
    total: Update
    statistics: Collection[str] = ()  # names of the declared statistics that are summed
    best: Collection[str] = ()  # names of the declared statistics of which the best is kept
    weight: float | None = None  # weight that every update must have; None: any
    substitute: Update | None = None  # added in place of a rejected update; None: nothing is added
    accepted: set[str] = field(default_factory=set)
    rejected: dict[str, str] = field(default_factory=dict)
    sent_bytes: Mapping[str, int] = field(default_factory=lambda: NOTHING_SENT)  # by role, over all clients

    def add(self, user: str, update: Update, *, transforms: Transforms = NO_TRANSFORMS) -> bool:
        """Apply the client halves of `transforms` to one client's update and add it. Return False if it is
        rejected."""
        if user in self.accepted:
            self.rejected[user] = "a second update in one round"
            return False
        reason = rejection_reason(update, self.broadcast, statistics=self.statistics, best=self.best)
        if reason is None and self.weight not in (None, update.weight):
            reason = f"a weight of {update.weight} where all clients must have {self.weight:g}"
        changed = None
        if reason is None:
            changed = transforms.on_client(update, self.broadcast, user)
            reason = _non_finite_reason(changed) if transforms.client_side else None
        if reason is not None:
            self.rejected[user] = reason
            changed = None if self.substitute is None else self._transform_substitute(user, self.substitute, transforms)
        if changed is not None:
            self.total = self.total + changed
            self.accepted.add(user)
        self.sent_bytes = add_bytes(self.sent_bytes, transforms.bytes_sent(update if changed is None else changed))
        return reason is None

    def _transform_substitute(self, user: str, substitute: Update, transforms: Transforms) -> Update:
        """Apply the transforms to the substitute; if the result is not finite, only those that make clients equal."""
        changed = transforms.on_client(substitute, self.broadcast, user)
        if _non_finite_reason(changed) is None:
            return changed
        equalizing = Transforms(tuple(one for one in transforms.chain if one.equal_clients))
        return equalizing.on_client(substitute, self.broadcast, user)


def _non_finite_reason(update: Update) -> str | None:
    """Return why a transformed update cannot be added; None if it is finite."""
    rows = {name: rows.values for name, rows in update.keyed.items()}
    names = non_finite({**update.federated, **rows, **update.statistics})
    return f"NaN or infinity in {names[0]!r} after its transforms" if names else None


def rejection_reason(
    update: Update, broadcast: Broadcast, *, statistics: Collection[str] = (), best: Collection[str] = ()
) -> str | None:
    """Return why one client's update is rejected; None if it is valid."""
    if update.round != broadcast.round:
        return f"an update of round {_format(update.round)} in round {broadcast.round}"
    if update.clients != 1:
        return f"an update of {_format(update.clients)} clients at once"
    if not (_is_finite(update.weight) and 0 <= update.weight <= MAX_WEIGHT):
        return f"a weight of {_format(update.weight)}"
    if set(update.metrics) != set(METRICS):
        return f"metrics {sorted(update.metrics)} where {sorted(METRICS)} were expected"
    if not all(isinstance(value, int | float) for value in update.metrics.values()):
        return "metrics that are not numbers"
    if not all(map(_is_finite, update.metrics.values())):
        return f"NaN, infinity or numbers beyond {LARGEST_NUMBER:g} in its metrics"
    if update.metrics["examples"] < 0:
        return f"{update.metrics['examples']:g} examples"
    largest = MAX_STEP * update.weight
    return (
        _wrong_tensors(update.federated, broadcast.federated, largest=largest)
        or _wrong_rows(update.keyed, broadcast.keyed, weight=update.weight)
        or _wrong_tensors(
            update.statistics, {name: broadcast.server[name] for name in statistics}, largest=largest, kind="statistics"
        )
        or _wrong_best(update.best, {name: broadcast.server[name] for name in best})
    )


def _wrong_best(found: Mapping[str, Candidate], expected: Tree) -> str | None:
    wrong = [one.score for one in found.values() if not (_is_finite(one.score) and one.score <= 0)]
    if wrong:
        return f"a score of {_format(wrong[0])}, where a Best statistic's score is at most 0"
    values = {name: one.value for name, one in found.items()}
    return _wrong_tensors(values, expected, largest=MAX_STEP, kind="statistics")


def _wrong_tensors(found: Tree, expected: Tree, *, largest: float, kind: str = "parameters") -> str | None:
    missing, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing or extra:
        return f"{kind} missing {missing}, unexpected {extra}"
    wrong = (
        _wrong_tensor(name, found[name], like=value, shape=value.shape, largest=largest)
        for name, value in expected.items()
    )
    return next((reason for reason in wrong if reason is not None), None)


def _wrong_rows(found: Mapping[str, Rows], expected: Tree, *, weight: float) -> str | None:
    missing, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing or extra:
        return f"keyed parameters missing {missing}, unexpected {extra}"
    for name, table in expected.items():
        rows = found[name]
        if not all(isinstance(part, Tensor) for part in (rows.index, rows.values, rows.weight)):
            return f"rows of {name!r} that are not tensors"
        index = rows.index
        if index.dtype != torch.int64 or index.dim() != 1 or bool((index[1:] <= index[:-1]).any()):
            return f"rows of {name!r} that are not ascending int64 numbers"
        if len(index) and (int(index[0]) < 0 or int(index[-1]) >= len(table)):
            return f"rows of {name!r} that do not exist"
        shape = (len(index), *table.shape[1:])
        reason = _wrong_tensor(name, rows.values, like=table, shape=shape, largest=MAX_STEP * weight)
        if reason is not None:
            return reason
        own = rows.weight
        if own.dtype != torch.float64 or own.shape != index.shape or any(one != weight for one in own.tolist()):
            return f"weights of rows of {name!r} that are not the update's weight as float64"
    return None


def _wrong_tensor(name: str, found: Tensor, *, like: Tensor, shape: Sequence[int], largest: float) -> str | None:
    if not isinstance(found, Tensor):
        return f"{name!r} that is not a tensor"
    if tuple(found.shape) != tuple(shape):
        return f"{name!r} of shape {tuple(found.shape)} where {tuple(shape)} was expected"
    if found.dtype != like.dtype:
        return f"{name!r} of {found.dtype} where {like.dtype} was expected"
    # Both are NaN if one number is. A norm with ord=inf takes twenty times as long.
    low, high = (float(one) for one in torch.aminmax(found)) if found.numel() else (0.0, 0.0)
    most = max(-low, high)
    return None if most <= largest else f"NaN, infinity or numbers beyond {largest:g} in {name!r}"


def _is_finite(value: float) -> bool:
    # the comparison is exact for integers of any size, where isfinite would overflow
    return isinstance(value, int | float) and -LARGEST_NUMBER <= value <= LARGEST_NUMBER


def _format(value: object) -> str:
    """Format a received value for an error message. Python raises an error on printing integers of 5,000 digits."""
    if isinstance(value, int) and abs(value) >= 10**18:
        return "more than 18 digits"
    return repr(value)[:40]


def rejected_error(who: str, reasons: Iterable[str], *, round: int) -> MessageError:
    """Return the error of a round that cannot continue without the rejected updates."""
    shown = "; ".join(reason for reason, _ in Counter(reasons).most_common(3))
    return MessageError(
        f"round {round}: {who} were rejected, because of {shown}. The model is unchanged. If local training "
        "diverges, lower the clients' learning rate."
    )
