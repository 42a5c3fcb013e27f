"""Server rules: compute the next server state from the current one and the cohort's summed update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from homespun.core.errors import SettingsError
from homespun.core.messages import Rows, ServerState, Update
from homespun.core.tree import Tree

ServerRule: TypeAlias = Callable[[ServerState, Update], ServerState]

# A keyed row is averaged over the whole cohort (clients that did not touch it count as zero), or over the clients that
# touched it.
RowDenominator: TypeAlias = Literal["cohort", "contributors"]


def mean_rows(rows: Rows, *, weight: float, row_denominator: RowDenominator) -> Tensor:
    if row_denominator == "cohort":
        return rows.values / weight
    shape = (-1, *[1] * (rows.values.dim() - 1))
    return rows.values / rows.weight.to(rows.values.dtype).reshape(shape)


def mean_delta(
    state: ServerState, update: Update, *, row_denominator: RowDenominator
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the cohort's mean delta of the federated parameters and of the keyed ones, as whole tables."""
    federated = {name: total / update.weight for name, total in update.federated.items()}
    keyed = {
        name: torch.zeros_like(state.keyed[name]).index_copy_(
            0, rows.index, mean_rows(rows, weight=update.weight, row_denominator=row_denominator)
        )
        for name, rows in update.keyed.items()
    }
    return federated, keyed


ServerName: TypeAlias = Literal["fedavg", "fedadam"]


@dataclass(frozen=True)
class FedAvg:
    """w <- w + lr * (sum of c_i delta_i / sum of c_i).

    Example:
        >>> state = ServerState(0, federated={"w": torch.tensor([1.0])}, keyed={})
        >>> update = Update(0, {"w": torch.tensor([6.0])}, {}, {"loss": 0.0, "examples": 3.0}, weight=3.0, clients=2)
        >>> FedAvg()(state, update).federated["w"]
        tensor([3.])
    """

    lr: float = 1.0
    row_denominator: RowDenominator = "cohort"

    def __call__(self, state: ServerState, update: Update) -> ServerState:
        if update.weight == 0:
            return replace(state, round=state.round + 1)
        federated, keyed = mean_delta(state, update, row_denominator=self.row_denominator)
        return replace(
            state,
            round=state.round + 1,
            federated={name: value + self.lr * federated[name] for name, value in state.federated.items()},
            keyed={name: value + self.lr * keyed[name] for name, value in state.keyed.items()},
        )


@dataclass(frozen=True)
class FedAdam:
    """Adam on the server, with the mean delta in place of the gradient (Reddi et al., 2021, algorithm 2:
    no bias correction, `tau` is their tau).

    Two options of `torch.optim.Adam` that the paper does not have: `weight_decay` subtracts weight_decay * w from the
    mean delta, which is minus a gradient; `bias_correction` divides the moments by 1 - beta^t after t steps.

    Example:
        >>> state = ServerState(0, federated={"w": torch.tensor([1.0])}, keyed={})
        >>> update = Update(0, {"w": torch.tensor([1.0])}, {}, {"loss": 0.0, "examples": 1.0}, weight=1.0, clients=1)
        >>> FedAdam(lr=0.1)(state, update).federated["w"]
        tensor([1.0990])
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    row_denominator: RowDenominator = "cohort"
    weight_decay: float = 0.0
    bias_correction: bool = False

    def __call__(self, state: ServerState, update: Update) -> ServerState:
        if update.weight == 0:
            return replace(state, round=state.round + 1)
        federated, keyed = mean_delta(state, update, row_denominator=self.row_denominator)
        memory: dict[str, Tensor] = {}
        first_correction = second_correction = 1.0
        if self.bias_correction:  # rounds with a weight of zero are not counted as steps
            memory["steps"] = state.optimizer.get("steps", torch.zeros((), dtype=torch.int64)) + 1
            first_correction, second_correction = (
                1 - beta ** int(memory["steps"]) for beta in (self.beta1, self.beta2)
            )

        def step(role: str, values: Tree, deltas: Tree) -> dict[str, Tensor]:
            moved = {}
            for name, value in values.items():
                first, second = f"{role}.first.{name}", f"{role}.second.{name}"
                zero = torch.zeros_like(value)
                delta = deltas[name] - self.weight_decay * value if self.weight_decay else deltas[name]
                memory[first] = self.beta1 * state.optimizer.get(first, zero) + (1 - self.beta1) * delta
                memory[second] = self.beta2 * state.optimizer.get(second, zero) + (1 - self.beta2) * delta**2
                scale = (memory[second] / second_correction).sqrt() + self.tau
                moved[name] = value + self.lr * (memory[first] / first_correction) / scale
            return moved

        return replace(
            state,
            round=state.round + 1,
            federated=step("federated", state.federated, federated),
            keyed=step("keyed", state.keyed, keyed),
            optimizer=memory,
        )


def server_rule(
    name: ServerName,
    *,
    lr: float | None,
    row_denominator: RowDenominator,
    weight_decay: float = 0.0,
    bias_correction: bool = False,
) -> FedAvg | FedAdam:
    """Return the rule of this name in settings; without `lr`, with the rule's default."""
    given = {} if lr is None else {"lr": lr}
    if name == "fedadam":
        return FedAdam(
            row_denominator=row_denominator, weight_decay=weight_decay, bias_correction=bias_correction, **given
        )
    if weight_decay or bias_correction:
        raise SettingsError("weight_decay and bias_correction are options of server = fedadam, not of fedavg.")
    return FedAvg(row_denominator=row_denominator, **given)


class ServerSettings(Protocol):
    """The settings of a method that choose its server rule."""

    @property
    def server(self) -> ServerName: ...
    @property
    def server_lr(self) -> float | None: ...
    @property
    def server_weight_decay(self) -> float: ...
    @property
    def server_bias_correction(self) -> bool: ...


def rule_from_settings(settings: ServerSettings, *, row_denominator: RowDenominator) -> FedAvg | FedAdam:
    return server_rule(
        settings.server,
        lr=settings.server_lr,
        row_denominator=row_denominator,
        weight_decay=settings.server_weight_decay,
        bias_correction=settings.server_bias_correction,
    )


def equal_weight(examples: int) -> float:
    """Weigh all clients that have examples equally."""
    return float(examples > 0)
