"""The loop of a worker process: it receives clients, trains them and returns their sum. It opens no file of the run.

Messages arrive on a socket as JSON and safetensors: nothing is pickled, and the caller's script is not imported.
"""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch

from homespun.core.messages import Broadcast, broadcast_from_tensors, pack, unpack
from homespun.core.method import BuiltMethod, MethodFile, Task, build
from homespun.core.tree import Tree
from homespun.engines.client import require_own_roles
from homespun.engines.exchange import clients_from_tensors, outcome_to_bytes, outputs_to_bytes, transforms_from_list
from homespun.engines.single_step import train_chunk
from homespun.engines.stacked import predict_clients
from homespun.system.method_loading import load_method


def setup(header: dict[str, Any]) -> tuple[BuiltMethod, int]:
    sys.path[:] = header["path"]
    files = [MethodFile(**file) for file in header["files"]]
    method = load_method(header["origin"], header["settings"], Task(**header["task"]), files=files)
    return build(method, seed=header["seed"]), header["seed"]


def answer(built: BuiltMethod, seed: int, broadcast: Broadcast, header: dict[str, Any], tensors: Tree) -> bytes:
    require_own_roles(broadcast, built)
    clients = clients_from_tensors(header["users"], tensors)
    if header["kind"] == "predict":
        return outputs_to_bytes(predict_clients(built, broadcast, clients))
    transforms = transforms_from_list(header["transforms"], built.method)
    outcome = train_chunk(built, broadcast, clients, mode=header["mode"], seed=seed, transforms=transforms)
    return outcome_to_bytes(outcome, header["users"])


def serve(descriptor: int) -> None:
    """Answer messages until the other end is closed, which Ctrl-C may do in the middle of one."""
    torch.set_num_threads(1)
    connection = Connection(descriptor)
    with suppress(EOFError, ConnectionError):
        _answer_all(connection)


def _answer_all(connection: Connection) -> None:
    built: BuiltMethod | None = None
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
