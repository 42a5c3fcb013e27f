"""Bytes of a round by role: what clients receive and what they send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from homespun.core import tree
from homespun.core.messages import ServerState
from homespun.engines.engine import Client

NUMBER = 8  # bytes of a number that is told by itself
NAMED = 16  # bytes beside the numbers of a keyed row: which one it is, and its weight


def traffic(
    state: ServerState,
    clients: Sequence[Client],
    *,
    keys: Mapping[str, str],
    beside: int,
    all_rows: bool = False,
    expected: int | None = None,
) -> dict[str, dict[str, int]]:
    """Bytes of a round by role, as every client receives and sends them; a cohort's sum has fewer rows than its
    clients together. `beside` is what each tells beside parameters: a weight, statistics, a step that is up for
    election. Private parameters are listed to say it: zero. Where it is a secret how many came, `expected` says how
    many do on average."""
    count = len(clients) if expected is None else expected
    federated, keyed = tree.byte_count(state.federated), tree.byte_count(state.keyed)
    rows = sum(
        (count * len(table) if all_rows else rows_sent(keys[name], clients, table_rows=len(table)))
        * (NAMED + table[:1].nbytes)
        for name, table in state.keyed.items()
    )
    return {
        "down_bytes": {"federated": count * federated, "keyed": count * keyed, "private": 0},
        "up_bytes": {
            "federated": count * federated,
            "keyed": rows,
            "statistics": count * beside,
            "private": 0,
        },
    }


def rows_sent(column: str, clients: Sequence[Client], *, table_rows: int) -> int:
    """How many rows of a keyed parameter clients send: each every row that this column of its examples names, once.
    A home that works out for itself which row is its own has one."""
    named = [client.data[column] for client in clients if column in client.data]
    if len(named) < len(clients):
        return len(clients)
    sizes = torch.tensor([rows.numel() for rows in named], dtype=torch.int64)
    whose = torch.arange(len(named)).repeat_interleave(sizes)
    rows = torch.cat([rows.flatten().long() for rows in named]) if named else whose
    return len(torch.unique(whose * table_rows + rows))
