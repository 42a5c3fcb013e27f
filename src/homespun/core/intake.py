"""Updates as they arrive: what does not answer the broadcast is refused, the rest is summed.

One bad update, by accident or on purpose, must not change the state nor end the round for the other clients. It is
refused whole, before anything is clipped or added, and remembered with the reason. Under differential privacy zeros
take its place: a missing update would say, without noise, that training failed on this client's data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import torch
from torch import Tensor

from homespun.core.errors import MessageError
from homespun.core.messages import LARGEST_NUMBER, METRICS, Broadcast, Candidate, Rows, Update
from homespun.core.transforms import NO_TRANSFORMS, NOTHING_SENT, Transforms, add_bytes
from homespun.core.tree import Tree

HEAVIEST = 1e8  # no client has that many examples
LARGEST_STEP = 1e9  # of one number, per unit of weight: no parameter moves that far, and sums of many stay finite


@dataclass
class Intake:
    """One round's sum so far, who is in it, and who was refused for what."""

    broadcast: Broadcast
    total: Update
    statistics: Collection[str] = ()  # declared ones that are summed
    best: Collection[str] = ()  # declared ones of which the best is kept
    weight: float | None = None  # that everybody has to have; None: each its own
    instead: Update | None = None  # taken in the place of an update that is refused; None: nothing is
    taken: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    sent_bytes: Mapping[str, int] = field(default_factory=lambda: NOTHING_SENT)  # by role, over all clients

    def take(self, user: str, update: Update, *, transforms: Transforms = NO_TRANSFORMS) -> bool:
        """Add one client's update as it leaves the client, after the client halves of `transforms`; False if it was
        refused."""
        if user in self.taken:
            self.refused[user] = "a second update in one round"
            return False
        reason = refusal(update, self.broadcast, statistics=self.statistics, best=self.best)
        if reason is None and self.weight not in (None, update.weight):
            reason = f"a weight of {update.weight} where everybody's is {self.weight:g}"
        changed = None
        if reason is None:
            changed = transforms.on_client(update, self.broadcast, user)
            reason = _no_numbers(changed) if transforms.client_side else None
        if reason is not None:
            self.refused[user] = reason
            changed = None if self.instead is None else self._in_its_place(user, self.instead, transforms)
        if changed is not None:
            self.total = self.total + changed
            self.taken.add(user)
        self.sent_bytes = add_bytes(self.sent_bytes, transforms.bytes_sent(update if changed is None else changed))
        return reason is None

    def _in_its_place(self, user: str, instead: Update, transforms: Transforms) -> Update:
        """`instead` as it leaves the client; if a transform breaks it too, with what makes clients equal alone."""
        changed = transforms.on_client(instead, self.broadcast, user)
        if _no_numbers(changed) is None:
            return changed
        protecting = Transforms(tuple(one for one in transforms.chain if one.equal_clients))
        return protecting.on_client(instead, self.broadcast, user)


def _no_numbers(update: Update) -> str | None:
    """Whether a transform made something of an update that cannot be added."""
    rows = {name: rows.values for name, rows in update.keyed.items()}
    tensors = {**update.federated, **rows, **update.statistics}
    broken = sorted(name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all()))
    return f"NaN or infinity in {broken[0]!r} after its transforms" if broken else None


def refusal(
    update: Update, broadcast: Broadcast, *, statistics: Collection[str] = (), best: Collection[str] = ()
) -> str | None:
    """Why one client's update cannot be taken; None if it can."""
    if update.round != broadcast.round:
        return f"an update of round {_shown(update.round)} in round {broadcast.round}"
    if update.clients != 1:
        return f"an update of {_shown(update.clients)} clients at once"
    if not (_is_finite(update.weight) and 0 <= update.weight <= HEAVIEST):
        return f"a weight of {_shown(update.weight)}"
    if set(update.metrics) != set(METRICS):
        return f"metrics {sorted(update.metrics)} where {sorted(METRICS)} were expected"
    if not all(isinstance(value, int | float) for value in update.metrics.values()):
        return "metrics that are not numbers"
    if not all(map(_is_finite, update.metrics.values())):
        return f"NaN, infinity or numbers beyond {LARGEST_NUMBER:g} in its metrics"
    if update.metrics["examples"] < 0:
        return f"{update.metrics['examples']:g} examples"
    largest = LARGEST_STEP * update.weight
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
        return f"a score of {_shown(wrong[0])}"
    values = {name: one.value for name, one in found.items()}
    return _wrong_tensors(values, expected, largest=LARGEST_STEP, kind="statistics")


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
            return f"rows of {name!r} that are no tensors"
        index = rows.index
        if index.dtype != torch.int64 or index.dim() != 1 or bool((index[1:] <= index[:-1]).any()):
            return f"rows of {name!r} that are not ascending numbers"
        if len(index) and (int(index[0]) < 0 or int(index[-1]) >= len(table)):
            return f"rows of {name!r} that are not there"
        shape = (len(index), *table.shape[1:])
        reason = _wrong_tensor(name, rows.values, like=table, shape=shape, largest=LARGEST_STEP * weight)
        if reason is not None:
            return reason
        own = rows.weight
        if own.dtype != torch.float64 or own.shape != index.shape or any(one != weight for one in own.tolist()):
            return f"weights of rows of {name!r} that are not the update's weight as float64"
    return None


def _wrong_tensor(name: str, found: Tensor, *, like: Tensor, shape: Sequence[int], largest: float) -> str | None:
    if not isinstance(found, Tensor):
        return f"{name!r} that is no tensor"
    if tuple(found.shape) != tuple(shape):
        return f"{name!r} of shape {tuple(found.shape)} where {tuple(shape)} was expected"
    if found.dtype != like.dtype:
        return f"{name!r} of {found.dtype} where {like.dtype} was expected"
    most = float(torch.linalg.vector_norm(found, ord=inf)) if found.numel() else 0.0
    return None if most <= largest else f"NaN, infinity or numbers beyond {largest:g} in {name!r}"


def _is_finite(value: float) -> bool:
    # comparing is exact for integers of any size; isfinite would overflow
    return isinstance(value, int | float) and -LARGEST_NUMBER <= value <= LARGEST_NUMBER


def _shown(value: object) -> str:
    """A value that arrived, short enough for an error; Python refuses to print integers of 5,000 digits."""
    if isinstance(value, int) and abs(value) >= 10**18:
        return "more than 18 digits"
    return repr(value)[:40]


def refused_error(who: str, reasons: Iterable[str], *, round: int) -> MessageError:
    """For a round that cannot continue without the clients that were refused."""
    shown = "; ".join(reason for reason, _ in Counter(reasons).most_common(3))
    return MessageError(
        f"round {round}: {who} were refused, because of {shown}. The model stays as it was. Where local training "
        "grows without bounds, lower the clients' learning rate."
    )
