"""Trains cohorts in which every client takes one gradient step from the broadcast weights, as a single gradient.

Gradients at the same point add up, so a cohort is one batch whose rows have their own private parameters, and the
shared weights need no client axis. If each client's gradient is clipped, the backward pass keeps the clients' gradients
separate. The results are those of `stacked` up to the order of the sums.

One client with non-finite numbers would spoil the sum. In that case the result is discarded and the cohort is trained
by `stacked`, which rejects updates one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from homespun.core.devices import CPU
from homespun.core.messages import METRICS, Broadcast, Candidate, Rows, Update
from homespun.core.method import Assign, Batch, BuiltMethod, Method, Phase, Stackable, optimizers
from homespun.core.optimizers import is_plain
from homespun.core.roles import SHARED, Role
from homespun.core.transforms import NO_TRANSFORMS, NUMBER_BYTES, Transforms, row_bytes, statistic_bytes
from homespun.core.tree import Tree, byte_count, non_finite
from homespun.engines.client import (
    Client,
    Mode,
    Outcome,
    can_stack,
    client_weight,
    compute_bests,
    compute_sums,
    gradients_of,
    sort_by_user,
    trainable_names,
    with_derived,
)
from homespun.engines.keys import BatchPlanner, phase_keys
from homespun.engines.local_step import local_step
from homespun.engines.placement import move_broadcast, move_tensors
from homespun.engines.stacked import (
    assign_private_stacked,
    stack_data,
    stack_private,
    train_clients,
    train_phase_stacked,
)


def train_chunk(
    built: BuiltMethod,
    broadcast: Broadcast,
    clients: Sequence[Client],
    *,
    mode: Mode,
    seed: int,
    transforms: Transforms = NO_TRANSFORMS,
    threads: int = 1,
) -> Outcome:
    """Train a chunk of clients: as one gradient if the method allows it, otherwise with `train_clients`."""
    if mode == "round" and can_take_single_step(built, clients) and transforms.sums_clients:
        found = _single_step(built, broadcast, sort_by_user(clients), seed=seed, transforms=transforms)
        if found is not None:
            return found
    return train_clients(built, broadcast, clients, mode=mode, seed=seed, transforms=transforms, threads=threads)


def can_take_single_step(built: BuiltMethod, clients: Sequence[Client]) -> bool:
    method = built.method
    if (
        not clients
        or not isinstance(built.model, Stackable)
        or not getattr(built.model, "takes_shared_weights", False)
        or method.local.example_weight is not None
        or not can_stack(built, clients)
    ):
        return False
    fewest, most = min(client.examples for client in clients), max(client.examples for client in clients)
    return fewest > 0 and _one_gradient(built, method, most=most)


def _one_gradient(built: BuiltMethod, method: Method, *, most: int) -> bool:
    """Whether shared parameters are trained by the last phase only, in one plain SGD step on all examples."""
    shared = built.partition.names(*SHARED)
    *before, last = method.local.phases
    if isinstance(last, Assign) or any(optimizers(phase, shared) for phase in before):
        return False
    plain = last.clip_norm is None and all(map(is_plain, optimizers(last, shared).values()))
    return plain and last.batch >= most and 1 in (last.steps, last.epochs)


@dataclass
class StackedCohort:
    """A cohort, sorted by user: its examples, private parameters and metrics."""

    clients: Sequence[Client]
    data: Batch  # [clients, most examples, ...]
    private: dict[str, Tensor]  # [clients, ...]
    metrics: dict[str, Tensor]  # [clients]

    @property
    def examples(self) -> Tensor:
        return torch.tensor([client.examples for client in self.clients])


def _single_step(
    built: BuiltMethod, broadcast: Broadcast, clients: Sequence[Client], *, seed: int, transforms: Transforms
) -> Outcome | None:
    """Return the outcome of `train_clients`; None if a number is not finite."""
    changes = transforms.client_side
    nothing = torch.zeros(len(clients), dtype=torch.float64)
    metrics = {name: nothing.clone() for name in METRICS}
    data, private = (
        move_tensors(values, built.device) for values in (stack_data(clients), stack_private(built, clients))
    )
    cohort = StackedCohort(clients, data, private, metrics)
    moved_broadcast = move_broadcast(broadcast, built.device)
    _train_private(built, moved_broadcast, cohort, seed=seed)
    weights = torch.tensor([client_weight(built, client, transforms) for client in clients])
    gradients, row_columns = _gradients(
        built, moved_broadcast, cohort, weights=weights, seed=seed, per_client=bool(changes)
    )
    cohort.private = _step_private(built, move_tensors(cohort.private, CPU), gradients, weights=weights)
    kept = [{name: value[place] for name, value in cohort.private.items()} for place in range(len(clients))]
    parameters = [{**broadcast.parameters, **own} for own in kept]
    statistics = _statistics(built, broadcast, clients, parameters, seed=seed)
    # a parameter that no phase trains does not move
    chosen = optimizers(_last_phase(built), (*broadcast.federated, *broadcast.keyed))
    rates = {name: -found.lr for name, found in chosen.items() if name in gradients}
    if not changes:
        steps = {name: rate * gradients[name] for name, rate in rates.items()}
        steps |= {name: torch.tensordot(weights, value, dims=1) for name, value in statistics.items()}
    else:
        weighted = {name: _unsqueeze_like(weights, value) * value for name, value in statistics.items()}
        moved = {**{name: gradients[name] for name in rates}, **weighted}
        scale = {**rates, **dict.fromkeys(statistics, 1.0)}
        steps, cohort.metrics = changes[0].on_clients(moved, cohort.metrics, scale=scale)
    best = _best(built, parameters)
    if any(map(non_finite, (steps, cohort.private, {name: one.value for name, one in best.items()}))):
        return None
    touched = _touched(built, broadcast, row_columns)
    update = Update(
        round=broadcast.round,
        federated={name: steps.get(name, torch.zeros_like(value)) for name, value in broadcast.federated.items()},
        keyed=_rows(broadcast, touched, steps, weights=weights),
        metrics={name: float(values.sum()) for name, values in cohort.metrics.items()},
        weight=float(weights.double().sum()),
        clients=len(clients),
        statistics={name: steps[name] for name in statistics},
        best=best,
    )
    private_by_user = {client.user: own for client, own in zip(clients, kept, strict=True)}
    sent = transforms.bytes_sent(update, _sent_bytes(broadcast, update, touched))
    return Outcome(update, private_by_user, sent_bytes=sent)


def _train_private(built: BuiltMethod, broadcast: Broadcast, cohort: StackedCohort, *, seed: int) -> None:
    """Run all phases but the last; they train private parameters only."""
    *before, _ = built.method.local.phases
    if not before:
        return
    clients = cohort.clients
    order = sorted(range(len(clients)), key=lambda place: -clients[place].examples)  # most examples first
    shared = {name: value.expand(len(clients), *value.shape) for name, value in broadcast.parameters.items()}
    rows = torch.tensor(order).to(built.device)
    values: dict[str, Tensor] = {**shared, **{name: value[rows] for name, value in cohort.private.items()}}
    in_order = order == sorted(order)  # all clients have as many: nothing to copy
    data = cohort.data if in_order else {name: column[rows] for name, column in cohort.data.items()}
    frozen = built.partition.select(built.initial, Role.FROZEN)
    users = [clients[place].user for place in order]
    planners = [BatchPlanner(seed=seed, mode="round", round=broadcast.round, user=user) for user in users]
    counts = torch.tensor([clients[place].examples for place in order])
    for number, phase in enumerate(before):
        if isinstance(phase, Assign):
            values |= assign_private_stacked(built, phase, {**frozen, **values}, data, examples=counts)
            continue
        plans = [one.plan(clients[place].examples, phase) for one, place in zip(planners, order, strict=True)]
        inputs = with_derived(built, {**frozen, **values}, data)
        keys = phase_keys(built, phase, seed=seed, mode="round", round=broadcast.round, number=number, users=users)
        cohort.metrics["loss"][order] += train_phase_stacked(
            built, phase, values, anchor=shared, data=inputs, plans=plans, keys=keys
        )
        cohort.metrics["examples"][order] += torch.tensor([float(sum(map(len, plan))) for plan in plans])
    back = rows.argsort()
    cohort.private = {name: values[name][back] for name in cohort.private}


def _gradients(
    built: BuiltMethod, broadcast: Broadcast, cohort: StackedCohort, *, weights: Tensor, seed: int, per_client: bool
) -> tuple[dict[str, Tensor], Batch]:
    """Compute the gradients of all parameters that the last phase trains, at the broadcast weights. Those of shared
    parameters are summed over clients, or separate with `per_client`; those of private parameters are multiplied by the
    client's weight. Also return the batch columns with row numbers of keyed parameters. Both are on the CPU."""
    last, examples = _last_phase(built), cohort.examples.to(built.device)
    frozen = built.partition.select(built.initial, Role.FROZEN)
    shared = broadcast.parameters
    each = {name: value.expand(len(examples), *value.shape) for name, value in shared.items()}  # views
    inputs = with_derived(built, {**frozen, **each, **cohort.private}, cohort.data)
    if per_client:
        shared = each
    leaves = {
        name: value.detach().requires_grad_(value.is_floating_point() and last.optimizer_of(name) is not None)
        for name, value in {**shared, **cohort.private}.items()
    }
    model = built.model
    assert isinstance(model, Stackable)
    losses = (last.loss or built.method.local.loss)(
        lambda given, some: model.stacked({**frozen, **given}, some),
        leaves,
        _add_keys(built, broadcast, cohort, inputs, seed),
    )
    valid = torch.arange(losses.shape[1], device=losses.device) < examples[:, None]
    losses = losses * valid
    cohort.metrics["loss"] += losses.detach().sum(dim=1).to(CPU)
    cohort.metrics["examples"] += cohort.examples
    objective = (weights.to(built.device) * losses.sum(dim=1) / examples).sum()
    trained = list(optimizers(last, trainable_names(leaves)))
    found = gradients_of(objective, {name: leaves[name] for name in trained})
    gradients = {name: one for name, one in found.items() if one is not None}
    row_columns = {column: inputs[column] for column in built.method.model.keys.values()}
    return move_tensors(gradients, CPU), move_tensors(row_columns, CPU)


def _add_keys(built: BuiltMethod, broadcast: Broadcast, cohort: StackedCohort, data: Batch, seed: int) -> Batch:
    """Add the keys of the last phase, which has one step on all examples."""
    users = [client.user for client in cohort.clients]
    last, number = _last_phase(built), len(built.method.local.phases) - 1
    keys = phase_keys(built, last, seed=seed, mode="round", round=broadcast.round, number=number, users=users)
    most = max(client.examples for client in cohort.clients)
    return keys.add(data, step=0, rows=torch.arange(most, device=built.device).expand(len(users), -1))


def _step_private(built: BuiltMethod, private: Tree, gradients: Tree, *, weights: Tensor) -> dict[str, Tensor]:
    """Take the last phase's step on the private parameters. Their gradients are multiplied by the clients' weights."""
    own = {name: gradients[name] / _unsqueeze_like(weights, gradients[name]) for name in private if name in gradients}
    values = {name: value.clone() if name in own else value for name, value in private.items()}
    local_step(built, _last_phase(built), values, anchor={}, stacked=True).take(values, own)
    return values


def _unsqueeze_like(weights: Tensor, value: Tensor) -> Tensor:
    """Add trailing axes to [clients], so that it broadcasts with [clients, ...]."""
    return weights.view(-1, *[1] * (value.dim() - 1))


def _last_phase(built: BuiltMethod) -> Phase:
    last = built.method.local.phases[-1]
    assert isinstance(last, Phase)  # `can_take_single_step`
    return last


def _statistics(
    built: BuiltMethod, broadcast: Broadcast, clients: Sequence[Client], parameters: Sequence[Tree], *, seed: int
) -> dict[str, Tensor]:
    """Compute each client's statistics that are summed: [clients, ...]."""
    each = [compute_sums(built, broadcast, client, own, seed) for client, own in zip(clients, parameters, strict=True)]
    return {name: torch.stack([one[name] for one in each]) for name in each[0]}


def _best(built: BuiltMethod, parameters: Sequence[Tree]) -> dict[str, Candidate]:
    each = [compute_bests(built, own) for own in parameters]
    return {
        name: max((one[name] for one in each), key=lambda one: one.score) for name in each[0]
    }  # the first of equals


def _touched(built: BuiltMethod, broadcast: Broadcast, data: Batch) -> dict[str, Tensor]:
    """Return which rows of every keyed parameter each client uploads: bool [clients, rows]."""
    found = {}
    for name, table in broadcast.keyed.items():
        touched = torch.zeros(len(next(iter(data.values()))), len(table), dtype=torch.bool)
        touched.scatter_(1, data[built.method.model.keys[name]].long(), True)
        found[name] = torch.ones_like(touched) if built.method.model.upload_rows == "all" else touched
    return found


def _rows(broadcast: Broadcast, touched: Tree, steps: Tree, *, weights: Tensor) -> dict[str, Rows]:
    """Return the rows that at least one client uploads, with the total weight of these clients."""
    found = {}
    for name, table in broadcast.keyed.items():
        index = touched[name].any(dim=0).nonzero()[:, 0]
        total = steps.get(name, torch.zeros_like(table))
        found[name] = Rows(index, total[index], (touched[name][:, index] * weights.double()[:, None]).sum(dim=0))
    return found


def _sent_bytes(broadcast: Broadcast, update: Update, touched: Tree) -> dict[str, int]:
    """Return `message_bytes` summed over the clients."""
    keyed = {name: row_bytes(table, rows=int(touched[name].sum())) for name, table in broadcast.keyed.items()}
    return {
        "federated": update.clients * byte_count(broadcast.federated),
        "keyed": sum(keyed.values()),
        "statistics": update.clients * (NUMBER_BYTES * (1 + len(update.metrics)) + statistic_bytes(update)),
        "private": 0,
    }
