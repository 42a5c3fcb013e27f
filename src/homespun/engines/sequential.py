"""One client at a time, for models that cannot be stacked: `loop`'s local work with less of it.

The numbers are the same but for rounding. Of a keyed parameter only the rows that the client's examples name are
copied and trained: the others have no gradient and stand still, unless their weights decay. FedProx's pull is added to
the gradient, not found by way of the loss. And the optimizers are torch's fused ones, which go over a parameter once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from homespun.core import seeds
from homespun.core.batches import plan_batches
from homespun.core.messages import Broadcast, Update
from homespun.core.method import Assign, Batch, BuiltMethod, Phase, optimizers
from homespun.core.transforms import Transforms
from homespun.core.tree import Tree
from homespun.engines.client import SEED_PURPOSE, Client, Mode, client_update, phases_of, select_kept
from homespun.engines.keys import client_batches, phase_keys
from homespun.engines.local_step import local_step
from homespun.engines.loop import assign_private, model_output
from homespun.engines.placement import move_broadcast, move_client, move_trained_to_cpu


def train_sequentially(
    built: BuiltMethod, broadcast: Broadcast, client: Client, *, mode: Mode, seed: int, transforms: Transforms
) -> tuple[Update | None, dict[str, Tensor]]:
    """What this client sends, if it is not for itself, and what stays at its home."""
    own = select_used_rows(built, broadcast, client, mode=mode)
    trained, metrics = train_one_client(built, own.broadcast, own.client, mode=mode, seed=seed)
    whole = built.parameters(broadcast, client.private)
    kept = {
        name: whole[name].index_copy(0, own.rows[name], value) if name in own.rows else value
        for name, value in select_kept(built, own.broadcast, trained, mode=mode).items()
    }
    if mode == "personalize":
        return None, kept
    update = client_update(
        built, own.broadcast, own.client, trained=trained, metrics=metrics, seed=seed, transforms=transforms
    )
    keyed = {name: replace(rows, index=own.rows[name][rows.index]) for name, rows in update.keyed.items()}
    return replace(update, keyed=keyed), kept


@dataclass(frozen=True)
class UsedRows:
    """A client and a broadcast without the keyed rows that the client never uses; its examples count anew."""

    broadcast: Broadcast
    client: Client
    rows: Mapping[str, Tensor]  # keyed parameter -> where its rows stand in the whole table


def select_used_rows(built: BuiltMethod, broadcast: Broadcast, client: Client, *, mode: Mode = "round") -> UsedRows:
    if _decays(built, mode):  # then also the rows that the client never uses move
        return UsedRows(broadcast, client, {name: torch.arange(len(table)) for name, table in broadcast.keyed.items()})
    named = {
        column: torch.unique(client.data[column].long(), return_inverse=True)
        for column in set(built.method.model.keys.values())
    }
    rows = {name: named[column][0] for name, column in built.method.model.keys.items()}
    data = {**client.data, **{column: places for column, (_, places) in named.items()}}
    private = {name: value[rows[name]] if name in rows else value for name, value in client.private.items()}
    keyed = {name: table[rows[name]] for name, table in broadcast.keyed.items()}
    return UsedRows(replace(broadcast, keyed=keyed), replace(client, private=private, data=data), rows)


def _decays(built: BuiltMethod, mode: Mode) -> bool:
    """Whether the weights of a keyed parameter decay."""
    phases, keyed = phases_of(built, mode), built.method.model.keys
    return any(one.weight_decay for phase in phases for one in optimizers(phase, keyed).values())


def train_one_client(
    built: BuiltMethod, broadcast: Broadcast, client: Client, *, mode: Mode, seed: int
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """`loop.train_client`."""
    broadcast, client = move_broadcast(broadcast, built.device), move_client(client, built.device)
    anchor = built.parameters(broadcast, client.private)
    parameters: dict[str, Tensor] = dict(anchor)
    generator = seeds.numpy_generator(seed, SEED_PURPOSE[mode], broadcast.round, client.user)
    loss, examples = 0.0, 0.0
    for number, phase in enumerate(phases_of(built, mode)):
        if isinstance(phase, Assign):
            parameters |= assign_private(built, phase, parameters, client.data)
            continue
        plan = plan_batches(client.examples, phase, generator)
        keys = phase_keys(built, seed=seed, mode=mode, round=broadcast.round, phase=number, users=[client.user])
        batches = client_batches(client.data, plan, keys)
        trained, phase_loss = _train_phase(built, phase, parameters, anchor=anchor, batches=batches)
        parameters |= trained
        loss += phase_loss
        examples += sum(len(rows) for rows in plan)
    return move_trained_to_cpu(built, parameters), {"loss": loss, "examples": examples}


def _train_phase(
    built: BuiltMethod, phase: Phase, parameters: Tree, *, anchor: Tree, batches: Sequence[Batch]
) -> tuple[dict[str, Tensor], float]:
    """The parameters that this phase trains, trained, and the summed loss."""
    steps = local_step(built, phase, parameters, anchor=anchor, stacked=False)
    leaves = {
        name: parameters[name].clone(memory_format=torch.contiguous_format).requires_grad_() for name in steps.chosen
    }
    loss_of, weight = phase.loss or built.method.local.loss, built.method.local.example_weight
    total = 0.0
    for batch in batches:
        losses = loss_of(lambda given, rows: model_output(built, given, rows), {**parameters, **leaves}, batch)
        total += float(losses.detach().sum())
        shares = torch.ones_like(losses) if weight is None else batch[weight].to(losses)
        objective = (losses * shares).sum() / shares.sum()
        steps.take(leaves, _gradients(objective, leaves))
    return {name: leaf.detach() for name, leaf in leaves.items()}, total


def _gradients(objective: Tensor, leaves: Tree) -> dict[str, Tensor | None]:
    if not objective.requires_grad:  # a loss that none of them has a part in
        return dict.fromkeys(leaves)
    found = torch.autograd.grad(objective, list(leaves.values()), allow_unused=True)
    return dict(zip(leaves, found, strict=True))
