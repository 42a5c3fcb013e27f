"""Trains one client at a time, for models that cannot be stacked: a faster version of `loop`.

The results are the same up to rounding. Only the rows of keyed parameters that the client's examples refer to are
copied and trained: the others have no gradient and do not change, unless there is weight decay. The gradient of the
FedProx term is added directly instead of by autograd, and the optimizers are torch's fused ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from homespun.core.messages import Broadcast, Update
from homespun.core.method import Assign, Batch, BuiltMethod, Phase, optimizers
from homespun.core.transforms import Transforms
from homespun.core.tree import Tree
from homespun.engines.client import Client, Mode, client_update, gradients_of, phases_of, select_kept
from homespun.engines.keys import BatchPlanner, client_batches, phase_keys
from homespun.engines.local_step import local_step
from homespun.engines.loop import assign_private, model_output
from homespun.engines.placement import move_broadcast, move_client, move_trained_to_cpu


def train_sequentially(
    built: BuiltMethod, broadcast: Broadcast, client: Client, *, mode: Mode, seed: int, transforms: Transforms
) -> tuple[Update | None, dict[str, Tensor]]:
    """Train one client; return its update (None when personalizing) and the parameters that it keeps."""
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
    """A client and a broadcast with only the keyed rows that the client uses, renumbered in its examples."""

    broadcast: Broadcast
    client: Client
    rows: Mapping[str, Tensor]  # keyed parameter -> positions of its rows in the whole table


def select_used_rows(built: BuiltMethod, broadcast: Broadcast, client: Client, *, mode: Mode = "round") -> UsedRows:
    """Leave out the keyed rows that the client does not use."""
    if _decays(built, mode):  # then unused rows change too
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
    """Whether a keyed parameter has weight decay."""
    phases, keyed = phases_of(built, mode), built.method.model.keys
    return any(one.weight_decay for phase in phases for one in optimizers(phase, keyed).values())


def train_one_client(
    built: BuiltMethod, broadcast: Broadcast, client: Client, *, mode: Mode, seed: int
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Train one client with fused optimizers, as `loop.train_client` does with plain ones."""
    broadcast, client = move_broadcast(broadcast, built.device), move_client(client, built.device)
    anchor = built.parameters(broadcast, client.private)
    parameters: dict[str, Tensor] = dict(anchor)
    user, round = client.user, broadcast.round
    planner = BatchPlanner(seed=seed, mode=mode, round=round, user=user)
    loss, examples = 0.0, 0.0
    for number, phase in enumerate(phases_of(built, mode)):
        if isinstance(phase, Assign):
            parameters |= assign_private(built, phase, parameters, client.data)
            continue
        plan = planner.plan(client.examples, phase)
        keys = phase_keys(built, phase, seed=seed, mode=mode, round=round, number=number, users=[user])
        batches = client_batches(client.data, plan, keys)
        trained, phase_loss = _train_phase(built, phase, parameters, anchor=anchor, batches=batches)
        parameters |= trained
        loss += phase_loss
        examples += sum(len(rows) for rows in plan)
    return move_trained_to_cpu(built, parameters), {"loss": loss, "examples": examples}


def _train_phase(
    built: BuiltMethod, phase: Phase, parameters: Tree, *, anchor: Tree, batches: Sequence[Batch]
) -> tuple[dict[str, Tensor], float]:
    """Return the trained parameters of this phase and the summed loss."""
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
        steps.take(leaves, gradients_of(objective, leaves))
    return {name: leaf.detach() for name, leaf in leaves.items()}, total
