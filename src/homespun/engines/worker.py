"""A worker process: receives clients, trains them, returns their sum. It touches no file of the run.

Messages come over one end of a socket pair as JSON and safetensors, so nothing is pickled, and the caller's
script is not imported again.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from homespun.core.messages import Broadcast, pack, prefixed, strip, unpack, update_to_tensors
from homespun.core.method import Built, Task, build, load_method
from homespun.core.tree import Tree
from homespun.engines.engine import Client
from homespun.engines.stacked import predict_together
from homespun.engines.summed import work_cohort
from homespun.privacy.guard import guard_from


def clients_to_tensors(clients: Sequence[Client]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for position, client in enumerate(clients):
        tensors |= prefixed(f"private/{position}", client.private) | prefixed(f"data/{position}", client.data)
    return tensors


def clients_from_tensors(users: Sequence[str], tensors: Tree) -> list[Client]:
    return [
        Client(user, private=strip(f"private/{position}", tensors), data=strip(f"data/{position}", tensors))
        for position, user in enumerate(users)
    ]


def setup(header: dict[str, Any]) -> tuple[Built, int]:
    sys.path[:] = header["path"]
    method = load_method(header["origin"], header["settings"], Task(**header["task"]))
    return build(method, seed=header["seed"]), header["seed"]


def answer(built: Built, seed: int, broadcast: Broadcast, header: dict[str, Any], tensors: Tree) -> bytes:
    clients = clients_from_tensors(header["users"], tensors)
    if header["kind"] == "predict":
        outputs = predict_together(built, broadcast, clients)
        return pack({}, {str(position): output for position, output in enumerate(outputs)})
    guard = guard_from(header["guard"])
    outcome = work_cohort(built, broadcast, clients, work=header["work"], seed=seed, guard=guard)
    reply, reply_tensors = update_to_tensors(outcome.update)
    places = {user: position for position, user in enumerate(header["users"])}
    for user, kept in outcome.private.items():
        reply_tensors |= prefixed(f"private/{places[user]}", kept)
    reply["refused"] = {places[user]: reason for user, reason in outcome.refused.items()}
    return pack(reply, reply_tensors)


def serve(descriptor: int) -> None:
    """Answer messages until the other end is closed."""
    torch.set_num_threads(1)
    connection = Connection(descriptor)
    built: Built | None = None
    broadcast: Broadcast | None = None
    seed = 0
    while True:
        try:
            message = connection.recv_bytes()
        except EOFError:
            return
        try:
            header, tensors = unpack(message)
            if header["kind"] == "setup":
                built, seed = setup(header)
            elif header["kind"] == "broadcast":
                broadcast = Broadcast(header["round"], strip("federated", tensors), strip("keyed", tensors))
            else:
                assert built is not None and broadcast is not None
                connection.send_bytes(answer(built, seed, broadcast, header, tensors))
        except Exception:
            connection.send_bytes(pack({"error": traceback.format_exc()}, {}))
