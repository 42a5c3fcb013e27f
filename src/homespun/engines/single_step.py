"""Cohorts in which everybody takes one gradient at the weights they were sent: the sum of it all is one gradient.

Gradients at the same point add up, so a cohort is one batch whose rows have private parameters of their own, and the
shared weights need no client axis. Where each client's gradient is clipped they are kept apart in the backward pass and
clipped together. The numbers are those of `stacked` but for the order of the sums.

One client whose numbers are not finite would spoil the sum: then nothing of this is used, and the cohort is trained by
`stacked`, where updates are refused one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from homespun.core import seeds
from homespun.core.batches import plan_batches
from homespun.core.devices import CPU
from homespun.core.messages import Broadcast, Elected, Rows, Update
from homespun.core.method import Batch, Built, Method, Stackable, optimizers
from homespun.core.optimizers import is_plain
from homespun.core.roles import SHARED, Role
from homespun.core.transforms import NO_TRANSFORMS, NUMBER_BYTES, Transforms, row_bytes
from homespun.core.tree import Tree, byte_count
from homespun.engines.client import (
    Client,
    Outcome,
    Work,
    can_stack,
    client_weight,
    in_user_order,
    trainable,
    with_columns,
    with_released,
)
from homespun.engines.device import broadcast_on, values_on
from homespun.engines.keys import phase_keys
from homespun.engines.local_step import local_step
from homespun.engines.stacked import stack_data, stack_private, train_phase_stacked, work_together


def work_cohort(
    built: Built,
    broadcast: Broadcast,
    clients: Sequence[Client],
    *,
    work: Work,
    seed: int,
    transforms: Transforms = NO_TRANSFORMS,
) -> Outcome:
    """`work_together`, and where the method allows it in one gradient."""
    if work == "phases" and can_be_summed(built, clients) and transforms.sums_clients:
        found = _summed(built, broadcast, in_user_order(clients), seed=seed, transforms=transforms)
        if found is not None:
            return found
    return work_together(built, broadcast, clients, work=work, seed=seed, transforms=transforms)


def can_be_summed(built: Built, clients: Sequence[Client]) -> bool:
    method = built.method
    if (
        not clients
        or not isinstance(built.model, Stackable)
        or method.share is not None
        or not can_stack(built, clients)
    ):
        return False
    fewest, most = min(client.examples for client in clients), max(client.examples for client in clients)
    return fewest > 0 and _one_gradient(built, method, most=most)


def _one_gradient(built: Built, method: Method, *, most: int) -> bool:
    """Whether what is shared is trained by the last phase alone, in one plain step on everything there is."""
    shared = built.partition.names(*SHARED)
    *before, last = method.phases
    if any(optimizers(phase, shared) for phase in before):
        return False
    plain = last.clip_norm is None and all(map(is_plain, optimizers(last, shared).values()))
    return plain and last.batch >= most and 1 in (last.steps, last.epochs)


@dataclass
class Stacked:
    """A cohort in user order: what everybody has, and what they tell."""

    clients: Sequence[Client]
    data: Batch  # [clients, most examples, ...]
    private: dict[str, Tensor]  # [clients, ...]
    told: dict[str, Tensor]  # statistics, [clients]

    @property
    def examples(self) -> Tensor:
        return torch.tensor([client.examples for client in self.clients])


def _summed(
    built: Built, broadcast: Broadcast, clients: Sequence[Client], *, seed: int, transforms: Transforms
) -> Outcome | None:
    """What `work_together` gives; None if a number is not finite."""
    changes = transforms.client_side
    nothing = torch.zeros(len(clients), dtype=torch.float64)
    told = {"loss": nothing.clone(), "examples": nothing.clone()}
    data, private = (values_on(values, built.device) for values in (stack_data(clients), stack_private(built, clients)))
    cohort = Stacked(clients, data, private, told)
    there = broadcast_on(broadcast, built.device)
    _train_private(built, there, cohort, seed=seed)
    weights = torch.tensor([client_weight(built, client, transforms) for client in clients])
    gradients, here = _gradients(built, there, cohort, weights=weights, seed=seed, apart=bool(changes))
    last = built.method.phases[-1]
    cohort.private = _stepped(built, values_on(cohort.private, CPU), gradients, weights=weights)
    kept = [{name: value[place] for name, value in cohort.private.items()} for place in range(len(clients))]
    released = _released(built, broadcast, clients, kept, seed=seed)
    shared = _shared(broadcast)
    # what nobody trains is not moved
    rates = {name: -found.rate for name, found in optimizers(last, list(shared)).items() if name in gradients}
    if not changes:
        steps = {name: rate * gradients[name] for name, rate in rates.items()}
        steps |= {name: torch.tensordot(weights, value, dims=1) for name, value in released.items()}
    else:
        weighted = {name: weights.view(-1, *[1] * (value.dim() - 1)) * value for name, value in released.items()}
        moved = {**{name: gradients[name] for name in rates}, **weighted}
        scale = {**rates, **dict.fromkeys(released, 1.0)}
        steps, cohort.told = changes[0].on_clients(moved, cohort.told, scale=scale)
    elected = _elected(built, shared, kept)
    if not all(map(_is_finite, (steps, cohort.private, {} if elected is None else elected.steps))):
        return None
    touched = _touched(built, broadcast, here)
    update = Update(
        round=broadcast.round,
        federated={name: steps.get(name, torch.zeros_like(value)) for name, value in broadcast.federated.items()},
        keyed=_rows(broadcast, touched, steps, weights=weights),
        statistics={name: float(values.sum()) for name, values in cohort.told.items()},
        weight=float(weights.double().sum()),
        clients=len(clients),
        elected=elected,
    )
    at_home = {client.user: own for client, own in zip(clients, kept, strict=True)}
    sent = transforms.bytes_sent(update, _sent_bytes(broadcast, update, touched))
    return Outcome(update, at_home, sent_bytes=sent)


def _train_private(built: Built, broadcast: Broadcast, cohort: Stacked, *, seed: int) -> None:
    """All phases but the last, which train private parameters only."""
    *before, _ = built.method.phases
    if not before:
        return
    clients = cohort.clients
    order = sorted(range(len(clients)), key=lambda place: -clients[place].examples)  # the busiest first
    shared = {name: value.expand(len(clients), *value.shape) for name, value in _shared(broadcast).items()}
    rows = torch.tensor(order).to(built.device)
    values: dict[str, Tensor] = {**shared, **{name: value[rows] for name, value in cohort.private.items()}}
    in_order = order == sorted(order)  # everybody has as many: nothing to copy
    data = cohort.data if in_order else {name: column[rows] for name, column in cohort.data.items()}
    frozen = built.partition.select(built.initial, Role.FROZEN)
    draws = [seeds.numpy_generator(seed, "phases", broadcast.round, clients[place].user) for place in order]
    users = [clients[place].user for place in order]
    for number, phase in enumerate(before):
        plans = [plan_batches(clients[place].examples, phase, draw) for place, draw in zip(order, draws, strict=True)]
        here = with_columns(built, {**frozen, **values}, data)
        keys = phase_keys(built, seed=seed, work="phases", round=broadcast.round, phase=number, users=users)
        cohort.told["loss"][order] += train_phase_stacked(
            built, phase, values, anchor=shared, data=here, plans=plans, keys=keys
        )
        cohort.told["examples"][order] += torch.tensor([float(sum(map(len, plan))) for plan in plans])
    back = rows.argsort()
    cohort.private = {name: values[name][back] for name in cohort.private}


def _gradients(
    built: Built, broadcast: Broadcast, cohort: Stacked, *, weights: Tensor, seed: int, apart: bool
) -> tuple[dict[str, Tensor], Batch]:
    """Of everything that the last phase trains, at the weights that were sent: what is shared summed over clients, or
    each client's apart; private parameters' each times its client's weight. And the columns that name rows of keyed
    parameters. Both on the CPU."""
    last, examples = built.method.phases[-1], cohort.examples.to(built.device)
    frozen = built.partition.select(built.initial, Role.FROZEN)
    shared = _shared(broadcast)
    here = with_columns(built, {**frozen, **shared, **cohort.private}, cohort.data)
    if apart:
        shared = {name: value.expand(len(examples), *value.shape) for name, value in shared.items()}
    leaves = {
        name: value.detach().requires_grad_(value.is_floating_point() and last.optimizer_of(name) is not None)
        for name, value in {**shared, **cohort.private}.items()
    }
    model = built.model
    assert isinstance(model, Stackable)
    losses = (last.loss or built.method.loss)(
        lambda given, some: model.stacked({**frozen, **given}, some),
        leaves,
        _with_keys(built, broadcast, cohort, here, seed),
    )
    valid = torch.arange(losses.shape[1], device=losses.device) < examples[:, None]
    losses = losses * valid
    cohort.told["loss"] += losses.detach().sum(dim=1).to(CPU)
    cohort.told["examples"] += cohort.examples
    objective = (weights.to(built.device) * losses.sum(dim=1) / examples).sum()
    trained = list(optimizers(last, trainable(leaves)))
    found = torch.autograd.grad(objective, [leaves[name] for name in trained], allow_unused=True)
    gradients = {name: one for name, one in zip(trained, found, strict=True) if one is not None}
    return values_on(gradients, CPU), values_on({column: here[column] for column in built.method.keys.values()}, CPU)


def _with_keys(built: Built, broadcast: Broadcast, cohort: Stacked, data: Batch, seed: int) -> Batch:
    """The last phase has one step, on everything there is."""
    users = [client.user for client in cohort.clients]
    phase = len(built.method.phases) - 1
    keys = phase_keys(built, seed=seed, work="phases", round=broadcast.round, phase=phase, users=users)
    most = max(client.examples for client in cohort.clients)
    return keys.add(data, step=0, rows=torch.arange(most, device=built.device).expand(len(users), -1))


def _stepped(built: Built, private: Tree, gradients: Tree, *, weights: Tensor) -> dict[str, Tensor]:
    """The private parameters after the last phase's one step. Their gradients come times their clients' weights."""
    own = {name: gradients[name] / _beside(weights, gradients[name]) for name in private if name in gradients}
    values = {name: value.clone() if name in own else value for name, value in private.items()}
    local_step(built, built.method.phases[-1], values, anchor={}, stacked=True).take(values, own)
    return values


def _beside(weights: Tensor, value: Tensor) -> Tensor:
    return weights.view(-1, *[1] * (value.dim() - 1))


def _shared(broadcast: Broadcast) -> dict[str, Tensor]:
    return {**broadcast.federated, **broadcast.keyed}


def _released(
    built: Built, broadcast: Broadcast, clients: Sequence[Client], private: Sequence[Tree], *, seed: int
) -> dict[str, Tensor]:
    """What homes tell of themselves on purpose, as deltas [clients, ...]. No gradient has a part in it."""
    if built.method.release is None:
        return {}
    shared = _shared(broadcast)
    each = []
    for client, own in zip(clients, private, strict=True):
        told = with_released(built, broadcast, client, {**shared, **own}, work="phases", seed=seed)
        each.append({name: told[name] - value for name, value in shared.items() if told[name] is not value})
    return {name: torch.stack([one[name] for one in each]) for name in each[0]}


def _elected(built: Built, shared: Tree, private: Sequence[Tree]) -> Elected | None:
    if built.method.elects is None:
        return None
    candidates = [built.method.elects({**shared, **own}) for own in private]
    return max(candidates, key=lambda candidate: candidate.score)  # the first of equals


def _touched(built: Built, broadcast: Broadcast, data: Batch) -> dict[str, Tensor]:
    """Of every keyed parameter, which rows each client sends: bool [clients, rows]."""
    found = {}
    for name, table in broadcast.keyed.items():
        touched = torch.zeros(len(next(iter(data.values()))), len(table), dtype=torch.bool)
        touched.scatter_(1, data[built.method.keys[name]].long(), True)
        found[name] = torch.ones_like(touched) if built.method.sends == "all" else touched
    return found


def _rows(broadcast: Broadcast, touched: Tree, steps: Tree, *, weights: Tensor) -> dict[str, Rows]:
    """The rows that any client sends, each with the weight of those that do."""
    found = {}
    for name, table in broadcast.keyed.items():
        index = touched[name].any(dim=0).nonzero()[:, 0]
        total = steps.get(name, torch.zeros_like(table))
        found[name] = Rows(index, total[index], (touched[name][:, index] * weights.double()[:, None]).sum(dim=0))
    return found


def _sent_bytes(broadcast: Broadcast, update: Update, touched: Tree) -> dict[str, int]:
    """`message_bytes`, summed over the clients."""
    elected = 0 if update.elected is None else NUMBER_BYTES + byte_count(update.elected.steps)
    keyed = {name: row_bytes(table, rows=int(touched[name].sum())) for name, table in broadcast.keyed.items()}
    return {
        "federated": update.clients * byte_count(broadcast.federated),
        "keyed": sum(keyed.values()),
        "statistics": update.clients * (NUMBER_BYTES * (1 + len(update.statistics)) + elected),
        "private": 0,
    }


def _is_finite(values: Mapping[str, Tensor]) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in values.values())
