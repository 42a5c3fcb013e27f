"""Moves models and tensors to the device that computes, and results back to the CPU.

Clients, broadcasts and outcomes are on the CPU. `place_method(built, device)` returns the method on another device; the
training functions of all trainers use `built.device`.
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
    """Return a copy with the model and all parameters on this device, or `built` itself if it is there already."""
    if device == built.device:
        return built
    model = copy.deepcopy(built.model).to(device)
    placed = dict(model.named_parameters())
    # frozen parameters may be most of a language model, so they are not copied
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
    """Move trained parameters to the CPU. Frozen ones stay on the device: they are not needed and may be large."""
    if built.device == CPU:
        return dict(trained)
    frozen = set(built.partition.names(Role.FROZEN))
    return {name: value if name in frozen else value.to(CPU) for name, value in trained.items()}
