"""Cohorts in which everybody takes one gradient at the weights they were sent: the sum of it all is one gradient.

Gradients at the same point add up, so a cohort is one batch whose rows have private parameters of their own, and the
shared weights need no client axis. Where each client's gradient is clipped they are kept apart in the backward pass and
clipped together. The numbers are those of `stacked` but for the order of the sums.

One client whose numbers are not finite would spoil the sum: then nothing of this is used, and the cohort is trained by
`stacked`, where updates are refused one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from homespun.core import seeds
from homespun.core.batches import plan_batches
from homespun.core.messages import Broadcast, Rows, Update
from homespun.core.method import Batch, Built, Method, Sgd, Stackable, optimizers
from homespun.core.roles import SHARED, Role
from homespun.core.tree import Tree
from homespun.engines.engine import Client, Outcome, Work, in_user_order, with_columns
from homespun.engines.stacked import Stepper, stack_data, stack_private, train_phase_stacked, work_together
from homespun.privacy.guard import Guard
from homespun.privacy.mechanism import clipped_statistics, clipped_sum


def work_cohort(
    built: Built, broadcast: Broadcast, clients: Sequence[Client], *, work: Work, seed: int, guard: Guard | None = None
) -> Outcome:
    """`work_together`, and where the method allows it in one gradient."""
    if work == "phases" and can_be_summed(built, clients, guard):
        found = _summed(built, broadcast, in_user_order(clients), seed=seed, guard=guard)
        if found is not None:
            return found
    return work_together(built, broadcast, clients, work=work, seed=seed, guard=guard)


def can_be_summed(built: Built, clients: Sequence[Client], guard: Guard | None) -> bool:
    method = built.method
    if not clients or not isinstance(built.model, Stackable) or method.release is not None or method.share is not None:
        return False
    if guard is not None and guard.local_noise is not None:  # everybody's own noise
        return False
    fewest, most = min(client.examples for client in clients), max(client.examples for client in clients)
    return fewest > 0 and _one_gradient(built, method, most=most)


def _one_gradient(built: Built, method: Method, *, most: int) -> bool:
    """Whether what is shared is trained by the last phase alone, in one plain step on everything there is."""
    shared = built.partition.names(*SHARED)
    *before, last = method.phases
    if any(optimizers(phase, shared) for phase in before):
        return False
    plain = all(isinstance(found, Sgd) and not found.momentum for found in optimizers(last, shared).values())
    return plain and last.batch >= most and 1 in (last.steps, last.epochs)


def _summed(
    built: Built, broadcast: Broadcast, clients: Sequence[Client], *, seed: int, guard: Guard | None
) -> Outcome | None:
    """What `work_together` gives; None if a number is not finite."""
    count, method = len(clients), built.method
    *before, last = method.phases
    shared: dict[str, Tensor] = {**broadcast.federated, **broadcast.keyed}
    everybodys = {name: value.expand(count, *value.shape) for name, value in shared.items()}
    private, data = stack_private(built, clients), stack_data(clients)
    frozen = built.partition.select(built.initial, Role.FROZEN)
    examples = torch.tensor([client.examples for client in clients])
    valid = (torch.arange(int(examples.max())) < examples[:, None]).float()
    told = {"loss": torch.zeros(count, dtype=torch.float64), "examples": torch.zeros(count, dtype=torch.float64)}
    order = sorted(range(count), key=lambda place: -clients[place].examples)
    if before:  # private parameters only
        values = {name: value[order] for name, value in private.items()}
        sorted_data = {name: column[order] for name, column in data.items()}
        generators = [seeds.numpy_generator(seed, "phases", broadcast.round, clients[place].user) for place in order]
        for phase in before:
            plans = [
                plan_batches(clients[place].examples, phase, draw)
                for place, draw in zip(order, generators, strict=True)
            ]
            seen = {**everybodys, **values}
            here = with_columns(built, {**frozen, **seen}, sorted_data)
            losses = train_phase_stacked(built, phase, seen, anchor=everybodys, data=here, plans=plans)
            values = {name: seen[name] for name in values}
            told["loss"][order] += losses
            told["examples"][order] += torch.tensor([float(sum(len(rows) for rows in plan)) for plan in plans])
        back = torch.tensor(order).argsort()
        private = {name: value[back] for name, value in values.items()}
    here = with_columns(built, {**frozen, **shared, **private}, data)
    apart = guard is not None
    leaves = {
        name: (everybodys[name] if apart else value).detach().requires_grad_(last.optimizer_of(name) is not None)
        for name, value in shared.items()
    }
    own = {name: value.detach().requires_grad_(last.optimizer_of(name) is not None) for name, value in private.items()}
    model = built.model
    assert isinstance(model, Stackable)
    losses = (last.loss or method.loss)(
        lambda given, some: model.stacked({**frozen, **given}, some), {**leaves, **own}, here
    )
    weights = torch.tensor([1.0 if apart else method.weight(client.examples) for client in clients])
    objective = (weights * (losses * valid).sum(dim=1) / examples).sum()
    told["loss"] += (losses.detach() * valid).sum(dim=1)
    told["examples"] += examples
    chosen = optimizers(last, [*leaves, *own])
    found = torch.autograd.grad(objective, [{**leaves, **own}[name] for name in chosen], allow_unused=True)
    gradients = {name: one for name, one in zip(chosen, found, strict=True) if one is not None}
    moved = {name: value.detach().clone() for name, value in own.items()}
    for name in own:
        if name in gradients:
            share = weights.view(-1, *[1] * (own[name].dim() - 1))
            Stepper(chosen[name]).step(moved[name], gradients[name] / share)
    rates = {name: -chosen[name].rate for name in leaves if name in gradients}  # what nobody trains is not moved
    if guard is None:
        steps = {name: rate * gradients[name] for name, rate in rates.items()}
    else:
        steps = clipped_sum({name: gradients[name] for name in rates}, guard.clip, times=rates)
        told = clipped_statistics(told, guard.clip.statistics)
    if not tree_is_finite(steps) or not tree_is_finite(moved):
        return None
    update = Update(
        round=broadcast.round,
        federated={name: steps.get(name, torch.zeros_like(value)) for name, value in broadcast.federated.items()},
        keyed=_rows(built, broadcast, here, steps, weights=weights),
        statistics={name: float(values.sum()) for name, values in told.items()},
        weight=float(weights.double().sum()),
        clients=count,
    )
    kept = {client.user: {name: moved[name][place] for name in moved} for place, client in enumerate(clients)}
    return Outcome(update, kept)


def _rows(built: Built, broadcast: Broadcast, data: Batch, steps: Tree, *, weights: Tensor) -> dict[str, Rows]:
    """The rows that anybody's examples name, each with the weight of those whose do."""
    found = {}
    for name, table in broadcast.keyed.items():
        touched = torch.zeros(len(next(iter(data.values()))), len(table), dtype=torch.bool)
        touched.scatter_(1, data[built.method.keys[name]].long(), True)
        if built.method.sends == "all":
            touched[:] = True
        index = touched.any(dim=0).nonzero()[:, 0]
        total = steps.get(name, torch.zeros_like(table))
        found[name] = Rows(index, total[index], (touched[:, index] * weights.double()[:, None]).sum(dim=0))
    return found


def tree_is_finite(values: Mapping[str, Tensor]) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in values.values())
