"""Where local work is computed. Clients, broadcasts and outcomes are on the CPU; the engine moves what it needs to its
device and takes back what was trained.

An engine's `built` for another device is `place(built, device)`: the training functions of all engines go by
`built.device`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from homespun.core.devices import CPU
from homespun.core.messages import Broadcast
from homespun.core.method import BuiltMethod
from homespun.core.roles import Role
from homespun.core.tree import Tree
from homespun.engines.client import Client


def place_method(built: BuiltMethod, device: str) -> BuiltMethod:
    """A copy with the model and all parameters on this device; on the device where it is, `built` itself."""
    if device == built.device:
        return built
    model = copy.deepcopy(built.model).to(device)
    placed = dict(model.named_parameters())
    # a frozen parameter may be most of a language model: it is not held twice
    initial = {
        name: placed[name].detach() if built.partition.roles[name] is Role.FROZEN else value.to(device)
        for name, value in built.initial.items()
    }
    return replace(built, model=model, initial=initial, device=device)


def move_tensors(values: Mapping[str, Tensor], device: str) -> dict[str, Tensor]:
    return {name: value.to(device) for name, value in values.items()}


def move_broadcast(broadcast: Broadcast, device: str) -> Broadcast:
    if device == CPU:
        return broadcast
    federated, keyed, server = (
        move_tensors(tree, device) for tree in (broadcast.federated, broadcast.keyed, broadcast.server)
    )
    return replace(broadcast, federated=federated, keyed=keyed, server=server)


def move_client(client: Client, device: str) -> Client:
    if device == CPU:
        return client
    return replace(client, private=move_tensors(client.private, device), data=move_tensors(client.data, device))


def move_trained_to_cpu(built: BuiltMethod, trained: Tree) -> dict[str, Tensor]:
    """Trained parameters on the CPU. What is frozen stays where it is: nobody asks for it, and it may be large."""
    if built.device == CPU:
        return dict(trained)
    frozen = set(built.partition.names(Role.FROZEN))
    return {name: value if name in frozen else value.to(CPU) for name, value in trained.items()}
