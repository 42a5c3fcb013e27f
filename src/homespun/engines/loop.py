"""The oracle: trains one client at a time with plain autograd and torch's optimizers. Slow and simple."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from homespun.core import seeds
from homespun.core.devices import CPU
from homespun.core.messages import Broadcast
from homespun.core.method import (
    AdamW,
    Assign,
    Batch,
    BuiltMethod,
    LocalPhase,
    LocalView,
    Optimizer,
    Phase,
    Sgd,
    optimizers,
)
from homespun.core.personalize import Home
from homespun.core.progress import Done, each, silent
from homespun.core.roles import SHARED
from homespun.core.threads import one_thread
from homespun.core.transforms import NO_TRANSFORMS, Transforms
from homespun.core.tree import Tree
from homespun.engines.client import (
    Client,
    Mode,
    Outcome,
    client_update,
    new_intake,
    require_own_roles,
    select_kept,
    sort_by_user,
    trainable_names,
    with_derived,
)
from homespun.engines.keys import BatchPlanner, PhaseKeys, client_batches, phase_keys
from homespun.engines.placement import move_broadcast, move_client, move_trained_to_cpu, place_method


@dataclass(frozen=True)
class LoopTrainer:
    built: BuiltMethod
    seed: int
    transforms: Transforms = NO_TRANSFORMS
    device: str = CPU

    @cached_property
    def placed(self) -> BuiltMethod:
        return place_method(self.built, self.device)

    @one_thread()
    def train(
        self, broadcast: Broadcast, clients: Sequence[Client], *, mode: Mode = "round", done: Done = silent
    ) -> Outcome:
        require_own_roles(broadcast, self.built)
        intake, private = new_intake(self.built, broadcast, self.transforms), {}
        moved = move_broadcast(broadcast, self.device)  # once for all clients
        for client in each(sort_by_user(clients), done):
            trained, metrics = train_client(self.placed, moved, client, mode=mode, seed=self.seed)
            if mode == "round":  # personalization sends nothing
                sent = client_update(
                    self.built,
                    broadcast,
                    client,
                    trained=trained,
                    metrics=metrics,
                    seed=self.seed,
                    transforms=self.transforms,
                )
                if not intake.add(client.user, sent, transforms=self.transforms):
                    continue
            private[client.user] = select_kept(self.built, broadcast, trained, mode=mode)
        return Outcome(intake.total, private, intake.rejected, intake.sent_bytes)

    @one_thread()
    def predict(self, broadcast: Broadcast, clients: Sequence[Client], *, done: Done = silent) -> list[Tensor]:
        require_own_roles(broadcast, self.built)
        return [predict_client(self.placed, broadcast, client) for client in each(clients, done)]

    def close(self) -> None:
        pass


def model_output(built: BuiltMethod, parameters: Tree, batch: Batch) -> Tensor:
    # some users may have private parameters that the model does not have
    known = {name: value for name, value in parameters.items() if name in built.partition.roles}
    output: Tensor = functional_call(built.model, known, (batch,))
    return output


def predict_client(built: BuiltMethod, broadcast: Broadcast, client: Client) -> Tensor:
    broadcast, client = move_broadcast(broadcast, built.device), move_client(client, built.device)
    parameters = built.parameters(broadcast, client.private)
    with torch.no_grad():
        return model_output(built, parameters, with_derived(built, parameters, client.data)).to(CPU)


def train_client(
    built: BuiltMethod, broadcast: Broadcast, client: Client, *, mode: Mode, seed: int
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Train one client; return its trained parameters and its metrics."""
    broadcast, client = move_broadcast(broadcast, built.device), move_client(client, built.device)
    steps = ClientSteps(built, broadcast, client, mode=mode, seed=seed)
    parameters = built.parameters(broadcast, client.private)
    if mode == "round":
        trained = steps.train(built.method.local.phases, parameters, client.data)
    else:
        trained = personalize_client(built, client, parameters, steps, seed=seed)
    return move_trained_to_cpu(built, trained), {"loss": steps.loss, "examples": steps.examples}


def personalize_client(
    built: BuiltMethod, client: Client, parameters: Tree, steps: ClientSteps, *, seed: int
) -> dict[str, Tensor]:
    """Return the client's parameters after the method's personalization."""

    def losses(given: Tree, data: Batch) -> Tensor:
        with torch.no_grad():
            batch = with_derived(built, given, data)
            return built.method.local.loss(lambda some, rows: model_output(built, some, rows), given, batch)

    home = Home(
        client.user,
        parameters,
        client.data,
        generator=seeds.torch_generator(seed, "personalize", steps.broadcast.round, client.user),
        train=steps.train,
        train_each=steps.train_each,
        losses=losses,
        predict_each=steps.predict_each,
    )
    return {**parameters, **built.method.personalize(home)}


class ClientSteps:
    """The gradient steps of one client's phases, with the summed loss and number of examples."""

    def __init__(self, built: BuiltMethod, broadcast: Broadcast, client: Client, *, mode: Mode, seed: int) -> None:
        self.built, self.broadcast, self.client, self.mode, self.seed = built, broadcast, client, mode, seed
        self.planner = BatchPlanner(seed=seed, mode=mode, round=broadcast.round, user=client.user)
        self.number, self.loss, self.examples = 0, 0.0, 0.0

    def train(self, phases: Sequence[LocalPhase], parameters: Tree, data: Batch) -> dict[str, Tensor]:
        """Run these phases and return the trained parameters."""
        trained = dict(parameters)
        for phase in phases:
            if isinstance(phase, Assign):
                trained |= assign_private(self.built, phase, trained, data)
            else:
                trained = self._train_phase(phase, trained, data)
        return trained

    def _train_phase(self, phase: Phase, parameters: Tree, data: Batch) -> dict[str, Tensor]:
        return self.train_each([phase], [parameters], data)[0]

    def train_each(self, phases: Sequence[Phase], starts: Sequence[Tree], data: Batch) -> list[dict[str, Tensor]]:
        """Run one phase from each of these parameters. All see the same batches."""
        plan = self.planner.plan(len(next(iter(data.values()))), phases[0])
        keys = phase_keys(
            self.built, phases[0], seed=self.seed, mode=self.mode, round=self.broadcast.round,
            number=self.number, users=[self.client.user],
        )  # fmt: skip
        found = self.take_each(phases, starts, data, plan=plan, keys=keys)
        self.number += 1
        self.loss += sum(loss for _, loss in found)
        self.examples += sum(len(rows) for rows in plan) * len(found)
        return [trained for trained, _ in found]

    def take_each(
        self,
        phases: Sequence[Phase],
        starts: Sequence[Tree],
        data: Batch,
        *,
        plan: Sequence[np.ndarray],
        keys: PhaseKeys,
    ) -> list[tuple[dict[str, Tensor], float]]:
        """Take the steps of each phase; return the trained parameters and the summed loss of each."""
        found = []
        for phase, start in zip(phases, starts, strict=True):
            batches = client_batches(with_derived(self.built, start, data), plan, keys)
            found.append(train_phase(self.built, phase, start, anchor=self.anchor, batches=batches))
        return found

    def predict_each(self, parameters: Sequence[Tree], data: Batch) -> list[Tensor]:
        """The model's output with each of these parameters."""
        with torch.no_grad():
            return [model_output(self.built, one, with_derived(self.built, one, data)) for one in parameters]

    @property
    def anchor(self) -> dict[str, Tensor]:
        """The client's parameters before local training."""
        return self.built.parameters(self.broadcast, self.client.private)


def assign_private(built: BuiltMethod, phase: Assign, parameters: Tree, data: Batch) -> dict[str, Tensor]:
    """Compute the private parameters of an `Assign` phase for one client; without examples they do not change."""
    if len(next(iter(data.values()))) == 0:
        return {}
    inputs = with_derived(built, parameters, data)
    column = built.method.local.example_weight
    weights = None if column is None else inputs[column]

    def mean(values: Tensor) -> Tensor:
        shares = torch.ones_like(values) if weights is None else weights.to(values)
        return (values * shares).sum(dim=-1) / shares.sum(dim=-1)

    view = LocalView(lambda given, rows: model_output(built, given, rows), parameters, inputs, mean)
    return phase.values(view)


def train_phase(
    built: BuiltMethod, phase: Phase, parameters: Tree, *, anchor: Tree, batches: Sequence[Batch]
) -> tuple[dict[str, Tensor], float]:
    """Take one step per batch on its mean loss plus the FedProx term of the shared parameters."""
    chosen = optimizers(phase, trainable_names(parameters))
    values = {
        name: tensor.clone().requires_grad_() if name in chosen else tensor for name, tensor in parameters.items()
    }
    shared = [name for name in built.partition.names(*SHARED) if name in chosen]
    optimizer_list = [torch_optimizer(optimizer, [values[name]]) for name, optimizer in chosen.items()]
    loss_of, weight = phase.loss or built.method.local.loss, built.method.local.example_weight
    total = 0.0
    for batch in batches:
        losses = loss_of(lambda given, rows: model_output(built, given, rows), values, batch)
        total += float(losses.detach().sum())
        shares = torch.ones_like(losses) if weight is None else batch[weight].to(losses)
        objective = (losses * shares).sum() / shares.sum()
        if phase.mu:
            distance = sum(((values[name] - anchor[name]) ** 2).sum() for name in shared)
            objective = objective + 0.5 * phase.mu * distance
        for optimizer in optimizer_list:
            optimizer.zero_grad(set_to_none=True)
        if objective.requires_grad:  # it may depend on nothing that is trained
            objective.backward()
        if phase.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_([values[name] for name in chosen], phase.clip_norm)
        for optimizer in optimizer_list:
            optimizer.step()
    return {name: value.detach() for name, value in values.items()}, total


def torch_optimizer(optimizer: Optimizer, tensors: list[Tensor]) -> torch.optim.Optimizer:
    if isinstance(optimizer, Sgd):
        return torch.optim.SGD(
            tensors, lr=optimizer.lr, momentum=optimizer.momentum, weight_decay=optimizer.weight_decay
        )
    kind = torch.optim.AdamW if isinstance(optimizer, AdamW) else torch.optim.Adam
    betas = (optimizer.beta1, optimizer.beta2)
    return kind(tensors, lr=optimizer.lr, betas=betas, eps=optimizer.eps, weight_decay=optimizer.weight_decay)
