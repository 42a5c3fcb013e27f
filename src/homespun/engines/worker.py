"""A worker process: receives clients, trains them, returns their sum. It touches no file of the run.

Messages come over one end of a socket pair as JSON and safetensors, so nothing is pickled, and the caller's
script is not imported again.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from homespun.core.messages import Broadcast, broadcast_from_tensors, pack, prefixed, strip, unpack, update_to_tensors
from homespun.core.method import Built, Task, build, load_method
from homespun.core.method_files import MethodFile
from homespun.core.tree import Tree
from homespun.engines.engine import Client, require_own_roles
from homespun.engines.stacked import predict_together
from homespun.engines.summed import work_cohort
from homespun.privacy.guard import guard_from


def clients_to_tensors(clients: Sequence[Client]) -> dict[str, Tensor]:
    """What all clients have in the same form goes as one tensor, its rows one client after the other: a tensor of a
    message costs as much time as a client's work where that is little."""
    found: dict[str, Tensor] = {}
    for kind in ("private", "data"):
        trees: list[Tree] = [getattr(client, kind) for client in clients]
        for name in sorted({name for tree in trees for name in tree}):
            values = [tree[name] for tree in trees if name in tree]
            forms = {(value.dtype, value.dim(), value.shape[1:]) for value in values}
            if len(values) == len(clients) and len(forms) == 1 and values[0].dim():
                found[f"rows/{kind}/{name}"] = torch.tensor([len(value) for value in values])
                found[f"joined/{kind}/{name}"] = torch.cat(values)
            else:
                found |= {f"{kind}/{place}/{name}": tree[name] for place, tree in enumerate(trees) if name in tree}
    return found


def clients_from_tensors(users: Sequence[str], tensors: Tree) -> list[Client]:
    parts = {name: joined.split(tensors[f"rows/{name}"].tolist()) for name, joined in strip("joined", tensors).items()}
    apart = {name: value for name, value in tensors.items() if not name.startswith(("joined/", "rows/"))}

    def of(kind: str, place: int) -> dict[str, Tensor]:
        own = {name.partition("/")[2]: each[place] for name, each in parts.items() if name.startswith(f"{kind}/")}
        return {**own, **strip(f"{kind}/{place}", apart)}

    return [Client(user, of("private", place), of("data", place)) for place, user in enumerate(users)]


def setup(header: dict[str, Any]) -> tuple[Built, int]:
    sys.path[:] = header["path"]
    files = [MethodFile(**file) for file in header["files"]]
    method = load_method(header["origin"], header["settings"], Task(**header["task"]), files=files)
    return build(method, seed=header["seed"]), header["seed"]


def answer(built: Built, seed: int, broadcast: Broadcast, header: dict[str, Any], tensors: Tree) -> bytes:
    require_own_roles(broadcast, built)
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
    """Answer messages until the other end is closed, which may be in the middle of one: after Ctrl-C nobody waits."""
    torch.set_num_threads(1)
    connection = Connection(descriptor)
    with suppress(EOFError, ConnectionError):
        _answer_all(connection)


def _answer_all(connection: Connection) -> None:
    built: Built | None = None
    broadcast: Broadcast | None = None
    seed = 0
    while True:
        message = connection.recv_bytes()
        try:
            header, tensors = unpack(message)
            if header["kind"] == "setup":
                built, seed = setup(header)
            elif header["kind"] == "broadcast":
                broadcast = broadcast_from_tensors(header, tensors)
            else:
                assert built is not None and broadcast is not None
                connection.send_bytes(answer(built, seed, broadcast, header, tensors))
        except ConnectionError:
            raise
        except Exception:
            connection.send_bytes(pack({"error": traceback.format_exc()}, {}))
