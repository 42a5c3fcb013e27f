"""Trains many clients at once: the local training of `loop`, with a leading client axis on every tensor.

A model opts in by defining `stacked(parameters, batch)`, where each parameter that is not frozen is [clients, ...] and
each batch column [clients, rows, ...]. The method's losses are used unchanged, with one more axis. Clients are sorted
by their number of examples, so that those still in training come first and finished ones are not touched again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from homespun.core.devices import CPU
from homespun.core.messages import Broadcast, Update
from homespun.core.method import Assign, Batch, BuiltMethod, LocalView, Phase, Stackable
from homespun.core.roles import Role
from homespun.core.threads import map_in_threads
from homespun.core.transforms import NO_TRANSFORMS, NOTHING_SENT, Transforms, add_bytes
from homespun.core.tree import Tree
from homespun.engines.client import (
    Client,
    Mode,
    Outcome,
    can_stack,
    client_update,
    gradients_of,
    new_intake,
    phases_of,
    private_names,
    select_kept,
    sort_by_user,
    with_derived,
)
from homespun.engines.keys import BatchPlanner, PhaseKeys, phase_keys
from homespun.engines.local_step import local_step
from homespun.engines.loop import ClientSteps, LoopTrainer, personalize_client, predict_client
from homespun.engines.placement import move_broadcast, move_client, move_tensors, move_trained_to_cpu
from homespun.engines.sequential import train_sequentially

Found = TypeVar("Found")


def train_clients(
    built: BuiltMethod,
    broadcast: Broadcast,
    clients: Sequence[Client],
    *,
    mode: Mode,
    seed: int,
    transforms: Transforms = NO_TRANSFORMS,
    threads: int = 1,
) -> Outcome:
    """Train these clients, stacked if the model supports it, and sum their updates in the order of users.

    `threads` may share the choices of a client's personalization."""
    clients = sort_by_user(clients)
    intake, private = new_intake(built, broadcast, transforms), {}
    stackable = isinstance(built.model, Stackable)
    # Custom personalization runs client by client, and so do derived columns, which need all rows of keyed parameters.
    custom = mode == "personalize" and built.method.personalize.alone
    if custom and stackable:
        for client in clients:
            trained = personalize_fast(built, broadcast, client, seed=seed, threads=threads)
            private[client.user] = select_kept(built, broadcast, trained, mode=mode)
        return Outcome(intake.total, private)
    if custom or not can_stack(built, clients) or (built.method.model.derived and not stackable):
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


def personalize_fast(
    built: BuiltMethod, broadcast: Broadcast, client: Client, *, seed: int, threads: int
) -> dict[str, Tensor]:
    """The parameters of one client after the method's own personalization, with the model's fast code in its gradient
    steps."""
    broadcast, client = move_broadcast(broadcast, built.device), move_client(client, built.device)
    steps = StackedSteps(built, broadcast, client, mode="personalize", seed=seed, threads=threads)
    parameters = built.parameters(broadcast, client.private)
    return move_trained_to_cpu(built, personalize_client(built, client, parameters, steps, seed=seed))


class StackedSteps(ClientSteps):
    """The gradient steps of one client. Choices of parameters with the same names, shapes and phase are stacked like
    clients, and stacks are shared by threads."""

    def __init__(
        self, built: BuiltMethod, broadcast: Broadcast, client: Client, *, mode: Mode, seed: int, threads: int = 1
    ) -> None:
        super().__init__(built, broadcast, client, mode=mode, seed=seed)
        self.threads = threads

    def take_each(
        self,
        phases: Sequence[Phase],
        starts: Sequence[Tree],
        data: Batch,
        *,
        plan: Sequence[np.ndarray],
        keys: PhaseKeys,
    ) -> list[tuple[dict[str, Tensor], float]]:
        def trained(places: list[int]) -> list[tuple[dict[str, Tensor], float]]:
            count, phase = len(places), phases[places[0]]
            values = self._stack([starts[place] for place in places])
            anchor = {name: value.expand(count, *value.shape) for name, value in self.anchor.items()}
            inputs = self._inputs(values, data, count=count)
            same_user = replace(keys, users=list(keys.users) * count)
            losses = train_phase_stacked(
                self.built, phase, values, anchor=anchor, data=inputs, plans=[plan] * count, keys=same_user
            )
            return [
                ({**starts[place], **{name: one[row] for name, one in values.items()}}, float(losses[row]))
                for row, place in enumerate(places)
            ]

        return self._by_stack(trained, self._stacks(starts, phases))

    def predict_each(self, parameters: Sequence[Tree], data: Batch) -> list[Tensor]:
        model = self.built.model
        assert isinstance(model, Stackable)

        def output(places: list[int]) -> list[Tensor]:
            values = self._stack([parameters[place] for place in places])
            with torch.no_grad():
                inputs = self._inputs(values, data, count=len(places))
                return list(model.stacked({**self._frozen, **values}, inputs))

        return self._by_stack(output, self._stacks(parameters, [None] * len(parameters)))

    def _by_stack(self, work: Callable[[list[int]], list[Found]], stacks: Sequence[list[int]]) -> list[Found]:
        """What `work` finds for each choice of each stack, in the order of choices."""
        found = dict[int, Found]()
        for places, results in zip(stacks, map_in_threads(work, stacks, threads=self.threads), strict=True):
            found |= zip(places, results, strict=True)
        return [found[place] for place in range(len(found))]

    @property
    def _frozen(self) -> Tree:
        return self.built.partition.select(self.built.initial, Role.FROZEN)

    def _stacks(self, choices: Sequence[Tree], phases: Sequence[Phase | None]) -> list[list[int]]:
        """Places of the choices that can be stacked, no more at once than clients of this model."""
        alike: list[tuple[Any, list[int]]] = []
        for place, (values, phase) in enumerate(zip(choices, phases, strict=True)):
            form = phase, {name: (value.shape, value.dtype) for name, value in values.items()}
            places = next((some for other, some in alike if other == form), None)
            if places is None:
                alike.append((form, [place]))
            else:
                places.append(place)
        most = int(getattr(self.built.model, "chunk", len(choices)))
        return [places[start : start + most] for _, places in alike for start in range(0, len(places), most)]

    def _stack(self, choices: Sequence[Tree]) -> dict[str, Tensor]:
        """[choices, ...] for every parameter that is not frozen; one that is the same for all is not copied."""
        found = {}
        for name, first in choices[0].items():
            if name not in self._frozen:
                values = [one[name] for one in choices]
                same = all(value is first for value in values)
                found[name] = first.expand(len(values), *first.shape) if same else torch.stack(values)
        return found

    def _inputs(self, values: Tree, data: Batch, *, count: int) -> Batch:
        stacked = {name: column.expand(count, *column.shape) for name, column in data.items()}
        return with_derived(self.built, {**self._frozen, **values}, stacked)


def predict_clients(built: BuiltMethod, broadcast: Broadcast, clients: Sequence[Client]) -> list[Tensor]:
    able = all(client.examples for client in clients) and can_stack(built, clients)
    if not isinstance(built.model, Stackable) or not able:
        return [predict_client(built, broadcast, client) for client in clients]
    data = move_tensors(stack_data(clients), built.device)
    shared = broadcast.parameters
    own = {name for client in clients for name in client.private}  # including copies of shared parameters
    stacked_private = {name: torch.stack([{**shared, **client.private}[name] for client in clients]) for name in own}
    parameters = {
        **{
            name: value.expand(len(clients), *value.shape) for name, value in move_tensors(shared, built.device).items()
        },
        **move_tensors(stacked_private, built.device),
        **built.partition.select(built.initial, Role.FROZEN),
    }
    with torch.no_grad():
        outputs = built.model.stacked(parameters, with_derived(built, parameters, data)).to(CPU)
    return [output[: client.examples].clone() for output, client in zip(outputs, clients, strict=True)]


def train_stacked(
    built: BuiltMethod, broadcast: Broadcast, clients: Sequence[Client], *, mode: Mode, seed: int
) -> list[tuple[dict[str, Tensor], dict[str, float]]]:
    """Return the result of `train_client` for each client, in the order of `clients`."""
    order = sorted(range(len(clients)), key=lambda position: -clients[position].examples)
    largest_first = [clients[position] for position in order]
    count = len(clients)
    shared = move_tensors(broadcast.parameters, built.device)
    anchor = {name: value.expand(count, *value.shape) for name, value in shared.items()}
    values = {**anchor, **move_tensors(stack_private(built, largest_first), built.device)}
    data, frozen = (
        move_tensors(stack_data(largest_first), built.device),
        built.partition.select(built.initial, Role.FROZEN),
    )
    planners = [BatchPlanner(seed=seed, mode=mode, round=broadcast.round, user=one.user) for one in largest_first]
    loss, examples = torch.zeros(count, dtype=torch.float64), np.zeros(count)
    users = [client.user for client in largest_first]
    counts = torch.tensor([client.examples for client in largest_first])
    for number, phase in enumerate(phases_of(built, mode)):
        if isinstance(phase, Assign):
            values |= assign_private_stacked(built, phase, {**frozen, **values}, data, examples=counts)
            continue
        plans = [one.plan(client.examples, phase) for one, client in zip(planners, largest_first, strict=True)]
        inputs = with_derived(built, {**frozen, **values}, data)
        keys = phase_keys(built, phase, seed=seed, mode=mode, round=broadcast.round, number=number, users=users)
        loss += train_phase_stacked(built, phase, values, anchor=anchor, data=inputs, plans=plans, keys=keys)
        examples += [sum(len(rows) for rows in plan) for plan in plans]
    found: dict[int, tuple[dict[str, Tensor], dict[str, float]]] = {}
    for place, position in enumerate(order):
        trained = {name: value[place].to(CPU) for name, value in values.items()}
        found[position] = trained, {"loss": float(loss[place]), "examples": float(examples[place])}
    return [found[position] for position in range(count)]


def assign_private_stacked(
    built: BuiltMethod, phase: Assign, parameters: Tree, data: Batch, *, examples: Tensor
) -> dict[str, Tensor]:
    """`loop.assign_private` for many clients; `examples` is the number of examples of each client."""
    frozen = built.partition.select(built.initial, Role.FROZEN)
    model, examples = built.model, examples.to(built.device)
    assert isinstance(model, Stackable)

    own = {name: value for name, value in parameters.items() if name not in frozen}
    inputs, column = with_derived(built, parameters, data), built.method.local.example_weight

    def mean(values: Tensor) -> Tensor:
        valid = torch.arange(values.shape[1], device=values.device) < examples[:, None]
        shares = valid.to(values) if column is None else valid * inputs[column].to(values)
        return (values * shares).sum(dim=1) / shares.sum(dim=1).clamp(min=torch.finfo(values.dtype).tiny)

    view = LocalView(lambda given, some: model.stacked({**frozen, **given}, some), own, inputs, mean)
    able = examples > 0
    return {
        name: value.where(able.view(-1, *[1] * (value.dim() - 1)), parameters[name])
        for name, value in phase.values(view).items()
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
    """Train `values` in place and return each client's summed loss. `keys` are those of the same clients."""
    steps = local_step(built, phase, values, anchor=anchor, stacked=True)
    chosen = steps.chosen
    for name in chosen:  # it may be one tensor, expanded over clients
        values[name] = values[name].clone(memory_format=torch.contiguous_format)
    frozen = built.partition.select(built.initial, Role.FROZEN)
    model = built.model
    assert isinstance(model, Stackable)
    loss_of, weight = phase.loss or built.method.local.loss, built.method.local.example_weight
    total = torch.zeros(len(plans), dtype=torch.float64)
    last_rows, batch = torch.empty(0), data
    all_rows = torch.arange(next(iter(data.values())).shape[1]).expand(len(plans), -1)
    for step in range(len(plans[0])):
        active = sum(len(plan) > step for plan in plans)  # a prefix: clients with most steps come first
        # The order within a batch does not matter. Sorted, a batch of all examples is the same tensors in every step,
        # so that a model can reuse what it computed from them.
        rows, valid = pad_rows([np.sort(plan[step]) for plan in plans[:active]])
        if not torch.equal(rows, last_rows):
            last_rows, batch = rows, data
            if not torch.equal(rows, all_rows):
                positions = torch.arange(active)[:, None].to(built.device), rows.to(built.device)
                batch = {name: column[positions] for name, column in data.items()}
        valid = valid.to(built.device)
        leaves = {name: value[:active].detach().requires_grad_(name in chosen) for name, value in values.items()}
        # New keys in every step; the other columns are the same tensors.
        keyed_batch = keys.add(batch, step=step, rows=rows.to(built.device))
        losses = loss_of(lambda given, some: model.stacked({**frozen, **given}, some), leaves, keyed_batch)
        total[:active] += (losses.detach() * valid).sum(dim=1).to(CPU)
        shares = valid if weight is None else valid * batch[weight]
        # Clients share no rows, so the gradient of the sum over clients holds the gradient of each client.
        objective = ((losses * shares).sum(dim=1) / shares.sum(dim=1)).sum()
        gradients = gradients_of(objective, {name: leaves[name] for name in chosen})
        steps.take(values, gradients, active=active)
    return total


def stack_private(built: BuiltMethod, clients: Sequence[Client]) -> dict[str, Tensor]:
    names = private_names(built, clients[0].private) if clients else []
    return {name: torch.stack([client.private[name] for client in clients]) for name in names}


def stack_data(clients: Sequence[Client]) -> Batch:
    """Stack every column as [clients, most examples, ...]. Padding repeats a client's first row, or that of another
    client if it has no examples: it is valid input with weight zero. Rows of different sizes are padded with zeros."""
    most = max(client.examples for client in clients)
    spare = next((client.data for client in clients if client.examples), clients[0].data)
    stacked = {}
    for name in spare:
        shapes = [client.data[name].shape[1:] for client in clients]
        column = spare[name].new_zeros(len(clients), most, *map(max, zip(*shapes, strict=True)))
        for position, client in enumerate(clients):
            own = client.data[name] if client.examples else spare[name][:1]
            size = [slice(length) for length in own.shape[1:]]
            rows = column[position]
            rows[(slice(len(own)), *size)] = own
            if len(own) < most:
                rows[(slice(len(own), None), *size)] = own[0]
        stacked[name] = column
    return stacked


def pad_rows(rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Return row numbers as [clients, longest batch], and a mask: 1 for rows, 0 for padding."""
    longest = max(len(some) for some in rows)
    padded, valid = (
        np.zeros((len(rows), longest), dtype=np.int64),
        np.zeros((len(rows), longest), dtype=np.float32),
    )
    for position, some in enumerate(rows):
        padded[position, : len(some)], valid[position, : len(some)] = some, 1.0
    return torch.from_numpy(padded), torch.from_numpy(valid)


def merge_outcomes(outcomes: Sequence[Outcome], empty: Update) -> Outcome:
    """Merge the outcomes of several chunks, in order."""
    total, sent_bytes = empty, NOTHING_SENT
    for outcome in outcomes:
        total, sent_bytes = total + outcome.update, add_bytes(sent_bytes, outcome.sent_bytes)
    return Outcome(
        total,
        private={user: private for outcome in outcomes for user, private in outcome.private.items()},
        rejected={user: reason for outcome in outcomes for user, reason in outcome.rejected.items()},
        sent_bytes=sent_bytes,
    )
