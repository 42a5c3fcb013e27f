"""Transforms of updates between a client and the server rule.

A transform implements both halves of one mechanism. The client half changes an update before it leaves the client; the
server half changes the cohort's sum before the server rule sees it. Client halves run in the order of the chain, server
halves in reverse. A run without transforms has an empty chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from homespun.core import tree
from homespun.core.messages import Broadcast, Update
from homespun.core.records import RoundRecord

NUMBER_BYTES = 8  # of a single number
ROW_HEADER_BYTES = 16  # of a keyed row: its index and its weight
NOTHING_SENT = {"federated": 0, "keyed": 0, "statistics": 0, "private": 0}


class UpdateTransform:
    """A mechanism on updates. Override the halves that it has; the defaults change nothing.

    Example:
        >>> class Half(UpdateTransform):
        ...     def on_client(self, update, broadcast, user):
        ...         return replace(update, federated={name: value / 2 for name, value in update.federated.items()})
        >>> Half().sums_clients
        False
    """

    # Every client has weight 1, a rejected update counts as zero, and updates are added in float64, so that weights,
    # missing updates and rounding errors disclose nothing about a client.
    equal_clients: bool = False
    # The number of participating clients is secret: nothing that is shown or recorded may depend on it.
    hides_cohort: bool = False

    def before_round(self, broadcast: Broadcast) -> None:
        """Called on the server before clients train."""

    def on_client(self, update: Update, broadcast: Broadcast, user: str) -> Update:
        """Transform one client's update before it leaves the client."""
        return update

    @property
    def sums_clients(self) -> bool:
        """Whether the transform implements `on_clients`; otherwise engines apply it client by client."""
        return False

    def on_clients(
        self, gradients: Mapping[str, Tensor], metrics: Mapping[str, Tensor], *, scale: Mapping[str, float]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """`on_client` for many clients at once: return the sum of their transformed updates, and their transformed
        metrics. An update is `scale` times a gradient or statistic [clients, ...]; a metric has one number per
        client."""
        raise NotImplementedError

    def on_server(self, total: Update, broadcast: Broadcast) -> Update:
        """Transform the cohort's sum before the server rule sees it."""
        return total

    def bytes_sent(self, update: Update, sent: dict[str, int]) -> dict[str, int]:
        """Return the bytes by role that clients send for this transformed update; `sent` is without this transform."""
        return sent

    def disclosed(self, record: RoundRecord, broadcast: Broadcast, update: Update) -> RoundRecord:
        """Return what may be recorded of a round; `update` is the one that the server rule saw."""
        return record


@dataclass(frozen=True)
class Transforms:
    """A chain of transforms."""

    chain: tuple[UpdateTransform, ...] = ()

    @property
    def client_side(self) -> tuple[UpdateTransform, ...]:
        """The transforms with a client half."""
        return tuple(one for one in self.chain if type(one).on_client is not UpdateTransform.on_client)

    @property
    def sums_clients(self) -> bool:
        """Whether a cohort's sum can be computed without the update of each client: if there is at most one client half
        and it implements `on_clients`."""
        return all(one.sums_clients for one in self.client_side) and len(self.client_side) <= 1

    @property
    def equal_clients(self) -> bool:
        return any(one.equal_clients for one in self.chain)

    @property
    def hides_cohort(self) -> bool:
        return any(one.hides_cohort for one in self.chain)

    def before_round(self, broadcast: Broadcast) -> None:
        for one in self.chain:
            one.before_round(broadcast)

    def on_client(self, update: Update, broadcast: Broadcast, user: str) -> Update:
        for one in self.chain:
            update = one.on_client(update, broadcast, user)
        return update

    def on_server(self, total: Update, broadcast: Broadcast) -> Update:
        for one in reversed(self.chain):
            total = one.on_server(total, broadcast)
        return total

    def bytes_sent(self, update: Update, sent: Mapping[str, int] | None = None) -> dict[str, int]:
        """Return the bytes by role of a transformed update. For a sum of updates, `sent` must be what its clients send
        without transforms."""
        sent = message_bytes(update) if sent is None else dict(sent)
        for one in self.chain:
            sent = one.bytes_sent(update, sent)
        return sent

    def disclosed(self, record: RoundRecord, broadcast: Broadcast, update: Update) -> RoundRecord:
        for one in self.chain:
            record = one.disclosed(record, broadcast, update)
        return record


NO_TRANSFORMS = Transforms()


def message_bytes(update: Update) -> dict[str, int]:
    """Return the bytes by role of an update. The entry for private parameters is always 0. A malformed update, with
    values that are not tensors, counts as 0 bytes."""
    parts = [*update.federated.values(), *(rows.values for rows in update.keyed.values()), *update.statistics.values()]
    parts += [one.value for one in update.best.values()]
    if not all(isinstance(part, Tensor) for part in parts):
        return dict(NOTHING_SENT)
    return {
        "federated": tree.byte_count(update.federated),
        "keyed": sum(row_bytes(rows.values, rows=len(rows.index)) for rows in update.keyed.values()),
        "statistics": NUMBER_BYTES * (1 + len(update.metrics)) + statistic_bytes(update),
        "private": 0,
    }


def statistic_bytes(update: Update) -> int:
    """Return the bytes of the declared statistics of one update."""
    best = {name: one.value for name, one in update.best.items()}
    return tree.byte_count(update.statistics) + tree.byte_count(best) + NUMBER_BYTES * len(best)


def row_bytes(table: Tensor, *, rows: int) -> int:
    """Return the bytes of some rows of a keyed parameter."""
    return rows * (ROW_HEADER_BYTES + table[:1].numel() * table.element_size())


def add_bytes(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
    return {role: left[role] + right[role] for role in left}


def broadcast_bytes(broadcast: Broadcast, *, clients: int) -> dict[str, int]:
    """Return the bytes by role that a cohort receives."""
    return {
        "federated": clients * tree.byte_count(broadcast.federated),
        "keyed": clients * tree.byte_count(broadcast.keyed),
        **({"server": clients * tree.byte_count(broadcast.server)} if broadcast.server else {}),
        "private": 0,
    }
