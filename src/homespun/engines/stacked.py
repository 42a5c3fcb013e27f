"""Many clients at once: the same local work as `loop`, with a leading client axis on every tensor.

A model opts in by offering `stacked(parameters, batch)`, where each parameter that is not frozen is
[clients, ...] and each batch column [clients, rows, ...]. Losses are the method's own, unchanged:
they see one more axis. Clients are sorted by how much they have to do, so that those still at work
are always the first ones, and those who are done are not touched again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from homespun.core import seeds
from homespun.core.batches import plan_batches
from homespun.core.devices import CPU
from homespun.core.messages import Broadcast, Update
from homespun.core.method import Assign, Batch, BuiltMethod, LocalView, Phase, Stackable
from homespun.core.personalize import GradientSteps
from homespun.core.roles import Role
from homespun.core.transforms import NO_TRANSFORMS, NOTHING_SENT, Transforms, add_bytes
from homespun.core.tree import Tree
from homespun.engines.client import (
    SEED_PURPOSE,
    Client,
    Mode,
    Outcome,
    can_stack,
    client_update,
    new_intake,
    phases_of,
    private_names,
    select_kept,
    sort_by_user,
    with_derived,
)
from homespun.engines.keys import PhaseKeys, phase_keys
from homespun.engines.local_step import local_step
from homespun.engines.loop import LoopTrainer, predict_client
from homespun.engines.placement import move_tensors
from homespun.engines.sequential import train_sequentially


def train_clients(
    built: BuiltMethod,
    broadcast: Broadcast,
    clients: Sequence[Client],
    *,
    mode: Mode,
    seed: int,
    transforms: Transforms = NO_TRANSFORMS,
) -> Outcome:
    """Local work of these clients, stacked where the model can, and their updates summed in user order."""
    clients = sort_by_user(clients)
    intake, private = new_intake(built, broadcast, transforms), {}
    stackable = isinstance(built.model, Stackable)
    # What is not gradient steps is done client by client, and so are columns that need all rows of keyed parameters.
    own_way = mode == "personalize" and not isinstance(built.method.personalize, GradientSteps)
    if own_way or not can_stack(built, clients) or (built.method.model.derived and not stackable):
        return LoopTrainer(built, seed, transforms, device=built.device).train(broadcast, clients, mode=mode)
    if not stackable:
        for client in clients:
            sent, kept = train_sequentially(built, broadcast, client, mode=mode, seed=seed, transforms=transforms)
            if sent is None or intake.add(client.user, sent, transforms=transforms):
                private[client.user] = kept
        return Outcome(intake.total, private, intake.rejected, intake.sent_bytes)
    results = train_stacked(built, broadcast, clients, mode=mode, seed=seed) if clients else []
    for client, (trained, metrics) in zip(clients, results, strict=True):
        if mode == "round":  # personalization sends nothing
            sent = client_update(
                built, broadcast, client, trained=trained, metrics=metrics, seed=seed, transforms=transforms
            )
            if not intake.add(client.user, sent, transforms=transforms):
                continue
        private[client.user] = select_kept(built, broadcast, trained, mode=mode)
    return Outcome(intake.total, private, intake.rejected, intake.sent_bytes)


def predict_clients(built: BuiltMethod, broadcast: Broadcast, clients: Sequence[Client]) -> list[Tensor]:
    able = all(client.examples for client in clients) and can_stack(built, clients)
    if not isinstance(built.model, Stackable) or not able:
        return [predict_client(built, broadcast, client) for client in clients]
    data = move_tensors(stack_data(clients), built.device)
    shared = broadcast.parameters
    own = {name for client in clients for name in client.private}  # with copies of shared ones, if there are any
    theirs = {name: torch.stack([{**shared, **client.private}[name] for client in clients]) for name in own}
    parameters = {
        **{
            name: value.expand(len(clients), *value.shape) for name, value in move_tensors(shared, built.device).items()
        },
        **move_tensors(theirs, built.device),
        **built.partition.select(built.initial, Role.FROZEN),
    }
    with torch.no_grad():
        outputs = built.model.stacked(parameters, with_derived(built, parameters, data)).to(CPU)
    return [output[: client.examples].clone() for output, client in zip(outputs, clients, strict=True)]


def train_stacked(
    built: BuiltMethod, broadcast: Broadcast, clients: Sequence[Client], *, mode: Mode, seed: int
) -> list[tuple[dict[str, Tensor], dict[str, float]]]:
    """What `train_client` gives for each client, in the order of `clients`."""
    order = sorted(range(len(clients)), key=lambda position: -clients[position].examples)
    busiest_first = [clients[position] for position in order]
    count = len(clients)
    shared = move_tensors(broadcast.parameters, built.device)
    anchor = {name: value.expand(count, *value.shape) for name, value in shared.items()}
    values = {**anchor, **move_tensors(stack_private(built, busiest_first), built.device)}
    data, frozen = (
        move_tensors(stack_data(busiest_first), built.device),
        built.partition.select(built.initial, Role.FROZEN),
    )
    purpose = SEED_PURPOSE[mode]
    generators = [seeds.numpy_generator(seed, purpose, broadcast.round, client.user) for client in busiest_first]
    loss, examples = torch.zeros(count, dtype=torch.float64), np.zeros(count)
    users = [client.user for client in busiest_first]
    counts = torch.tensor([client.examples for client in busiest_first])
    for number, phase in enumerate(phases_of(built, mode)):
        if isinstance(phase, Assign):
            values |= assign_private_stacked(built, phase, {**frozen, **values}, data, examples=counts)
            continue
        plans = [
            plan_batches(client.examples, phase, generator)
            for client, generator in zip(busiest_first, generators, strict=True)
        ]
        here = with_derived(built, {**frozen, **values}, data)
        keys = phase_keys(built, seed=seed, mode=mode, round=broadcast.round, phase=number, users=users)
        loss += train_phase_stacked(built, phase, values, anchor=anchor, data=here, plans=plans, keys=keys)
        examples += [sum(len(rows) for rows in plan) for plan in plans]
    found: dict[int, tuple[dict[str, Tensor], dict[str, float]]] = {}
    for place, position in enumerate(order):
        trained = {name: value[place].to(CPU) for name, value in values.items()}
        found[position] = trained, {"loss": float(loss[place]), "examples": float(examples[place])}
    return [found[position] for position in range(count)]


def assign_private_stacked(
    built: BuiltMethod, phase: Assign, parameters: Tree, data: Batch, *, examples: Tensor
) -> dict[str, Tensor]:
    """`loop.assigned` for many clients; `examples` says how many rows of each client are examples."""
    frozen = built.partition.select(built.initial, Role.FROZEN)
    model, examples = built.model, examples.to(built.device)
    assert isinstance(model, Stackable)

    own = {name: value for name, value in parameters.items() if name not in frozen}
    here, column = with_derived(built, parameters, data), built.method.local.example_weight

    def mean(values: Tensor) -> Tensor:
        valid = torch.arange(values.shape[1], device=values.device) < examples[:, None]
        shares = valid.to(values) if column is None else valid * here[column].to(values)
        return (values * shares).sum(dim=1) / shares.sum(dim=1).clamp(min=torch.finfo(values.dtype).tiny)

    view = LocalView(lambda given, some: model.stacked({**frozen, **given}, some), own, here, mean)
    able = examples > 0
    return {
        name: value.where(able.view(-1, *[1] * (value.dim() - 1)), parameters[name])
        for name, value in phase.compute(view).items()
    }


def train_phase_stacked(
    built: BuiltMethod,
    phase: Phase,
    values: dict[str, Tensor],
    *,
    anchor: Tree,
    data: Batch,
    plans: Sequence[Sequence[np.ndarray]],
    keys: PhaseKeys,
) -> Tensor:
    """Train `values` in place; return each client's summed loss. `keys` are of the same clients."""
    steps = local_step(built, phase, values, anchor=anchor, stacked=True)
    chosen = steps.chosen
    for name in chosen:  # until now it may have been one value, shown to everybody
        values[name] = values[name].clone(memory_format=torch.contiguous_format)
    frozen = built.partition.select(built.initial, Role.FROZEN)
    model = built.model
    assert isinstance(model, Stackable)
    loss_of, weight = phase.loss or built.method.local.loss, built.method.local.example_weight
    total = torch.zeros(len(plans), dtype=torch.float64)
    before, batch = torch.empty(0), data
    everything = torch.arange(next(iter(data.values())).shape[1]).expand(len(plans), -1)
    for step in range(len(plans[0])):
        active = sum(len(plan) > step for plan in plans)  # a prefix: the busiest clients come first
        # A batch's order does not matter. Sorted, a batch of everything is the same tensors again, and a model may know
        # what it made of them.
        rows, valid = pad_rows([np.sort(plan[step]) for plan in plans[:active]])
        if not torch.equal(rows, before):
            before, batch = rows, data
            if not torch.equal(rows, everything):
                here = torch.arange(active)[:, None].to(built.device), rows.to(built.device)
                batch = {name: column[here] for name, column in data.items()}
        valid = valid.to(built.device)
        leaves = {name: value[:active].detach().requires_grad_(name in chosen) for name, value in values.items()}
        # Other keys in every step, and else the same tensors.
        drawn = keys.add(batch, step=step, rows=rows.to(built.device))
        losses = loss_of(lambda given, some: model.stacked({**frozen, **given}, some), leaves, drawn)
        total[:active] += (losses.detach() * valid).sum(dim=1).to(CPU)
        shares = valid if weight is None else valid * batch[weight]
        # Each client's parameters are its own rows: the gradient of the sum over clients is each one's own.
        objective = ((losses * shares).sum(dim=1) / shares.sum(dim=1)).sum()
        trained = list(chosen)
        gradients = torch.autograd.grad(objective, [leaves[name] for name in trained], allow_unused=True)
        steps.take(values, dict(zip(trained, gradients, strict=True)), active=active)
    return total


def stack_private(built: BuiltMethod, clients: Sequence[Client]) -> dict[str, Tensor]:
    names = private_names(built, clients[0].private) if clients else []
    return {name: torch.stack([client.private[name] for client in clients]) for name in names}


def stack_data(clients: Sequence[Client]) -> Batch:
    """Every column as [clients, most examples, ...]. Filler repeats a client's first row (or, for a client
    without examples, anybody's): it is legal input, and its weight is zero."""
    most = max(client.examples for client in clients)
    spare = next((client.data for client in clients if client.examples), clients[0].data)
    stacked = {}
    for name in spare:
        column = spare[name].new_empty(len(clients), most, *spare[name].shape[1:])
        for position, client in enumerate(clients):
            own = client.data[name]
            column[position, : len(own)] = own
            if len(own) < most:
                column[position, len(own) :] = own[0] if len(own) else spare[name][0]
        stacked[name] = column
    return stacked


def pad_rows(rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Row numbers as [clients, longest batch], and 1 where a row is real, 0 where it is filler."""
    longest = max(len(some) for some in rows)
    padded, valid = (
        np.zeros((len(rows), longest), dtype=np.int64),
        np.zeros((len(rows), longest), dtype=np.float32),
    )
    for position, some in enumerate(rows):
        padded[position, : len(some)], valid[position, : len(some)] = some, 1.0
    return torch.from_numpy(padded), torch.from_numpy(valid)


def merge_outcomes(outcomes: Sequence[Outcome], empty: Update) -> Outcome:
    """Several chunks of a cohort as one."""
    total, sent_bytes = empty, NOTHING_SENT
    for outcome in outcomes:
        total, sent_bytes = total + outcome.update, add_bytes(sent_bytes, outcome.sent_bytes)
    return Outcome(
        total,
        private={user: private for outcome in outcomes for user, private in outcome.private.items()},
        rejected={user: reason for outcome in outcomes for user, reason in outcome.rejected.items()},
        sent_bytes=sent_bytes,
    )
