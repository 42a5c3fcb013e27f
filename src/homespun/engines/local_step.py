"""One local step of the fast trainers: the FedProx term, clipping, then the optimizer.

`stacked` and `single_step` train many clients at once: every tensor has a leading client axis. Clients that have
finished are the last rows, so a gradient may have fewer rows than its parameter. `sequential` trains one client with
torch's fused optimizers. `loop`, the oracle, uses none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from homespun.core.devices import CPU
from homespun.core.method import BuiltMethod, Phase, optimizers
from homespun.core.optimizers import Adam, AdamW, Optimizer, Sgd
from homespun.core.roles import SHARED
from homespun.core.tree import Tree
from homespun.engines.client import trainable_names

SMALLEST_NORM = 1e-6  # torch.nn.utils.clip_grad_norm_ adds it to the norm


@dataclass
class LocalStep:
    """The steps of one phase. It holds the state of the optimizers, so every phase needs a new one."""

    phase: Phase
    chosen: Mapping[str, Optimizer]  # the parameters that are trained
    pulled: frozenset[str]  # the parameters in the FedProx term
    anchor: Tree
    stacked: bool  # whether there is a leading client axis
    _steppers: dict[str, Stepper | FusedStepper] = field(default_factory=dict)

    def take(self, values: Tree, gradients: Mapping[str, Tensor | None], *, active: int | None = None) -> None:
        """Update `values` in place; with a client axis, those of the first `active` clients. As in torch, a parameter
        without a gradient does not change."""
        pulled = {name: self._pull(name, values[name], one, active) for name, one in gradients.items()}
        present = {name: one for name, one in pulled.items() if one is not None}
        if self.phase.clip_norm is not None:
            present = clip_by_norm(present, self.phase.clip_norm, stacked=self.stacked)
        for name, gradient in present.items():
            if name not in self._steppers:
                self._steppers[name] = (Stepper if self.stacked else FusedStepper)(self.chosen[name])
            self._steppers[name].step(values[name], gradient)

    def _pull(self, name: str, value: Tensor, gradient: Tensor | None, active: int | None) -> Tensor | None:
        """Add the gradient of mu/2 |w - w_broadcast|^2."""
        if name not in self.pulled:
            return gradient
        value, anchor = value.detach(), self.anchor[name]
        if active is not None:
            value, anchor = value[:active], anchor[:active]
        pull = (value - anchor).mul_(self.phase.mu)
        return pull if gradient is None else gradient + pull


def local_step(built: BuiltMethod, phase: Phase, parameters: Tree, *, anchor: Tree, stacked: bool) -> LocalStep:
    """Return the steps of this phase on these parameters."""
    chosen = optimizers(phase, trainable_names(parameters))
    pulled = frozenset(built.partition.names(*SHARED)) & chosen.keys() if phase.mu else frozenset()
    return LocalStep(phase, chosen, pulled, anchor, stacked)


def clip_by_norm(gradients: Mapping[str, Tensor], largest: float, *, stacked: bool) -> dict[str, Tensor]:
    """Clip the norm over all parameters, per client, as clip_grad_norm_ does."""
    if not gradients:
        return {}
    clients = 1 if stacked else 0
    norms = [torch.linalg.vector_norm(one.reshape(*one.shape[:clients], -1), dim=-1) for one in gradients.values()]
    total = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    factor = (largest / (total + SMALLEST_NORM)).clamp(max=1.0)
    if factor.device.type == CPU and bool((factor == 1).all()):  # the usual case: saves a copy of every gradient
        return dict(gradients)
    return {name: one * factor.view((*factor.shape, *[1] * (one.dim() - clients))) for name, one in gradients.items()}


@dataclass
class Stepper:
    """The optimizer of one stacked parameter, of which only the first rows may still be in training."""

    optimizer: Optimizer
    memory: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0

    def step(self, value: Tensor, gradient: Tensor) -> None:
        """Update the first rows of `value` in place, as many as the gradient has."""
        self.steps += 1
        IMPLEMENTATIONS[type(self.optimizer)].stacked(self, self.optimizer, value, gradient)

    def state(self, name: str, like: Tensor, rows: int) -> Tensor:
        return self.memory.setdefault(name, torch.zeros_like(like))[:rows]


def _sgd(stepper: Stepper, optimizer: Sgd, value: Tensor, gradient: Tensor) -> None:
    target = value[: len(gradient)]
    gradient = _decayed(gradient, target, optimizer.weight_decay)
    if optimizer.momentum:
        gradient = stepper.state("momentum", value, len(gradient)).mul_(optimizer.momentum).add_(gradient)
    target.add_(gradient, alpha=-optimizer.lr)


def _decayed(gradient: Tensor, target: Tensor, weight_decay: float) -> Tensor:
    return gradient.add(target, alpha=weight_decay) if weight_decay else gradient


def _adaptive_step(stepper: Stepper, optimizer: Adam | AdamW, value: Tensor, gradient: Tensor) -> None:
    """Fused on the CPU: one pass over a table of all clients instead of ten."""
    active = len(gradient)
    adam(
        [value[:active]],
        [gradient.contiguous()],  # fused kernels ignore strides
        [stepper.state("first", value, active)],
        [stepper.state("second", value, active)],
        [],
        [torch.tensor(stepper.steps - 1.0)],
        fused=_fused(value),
        foreach=False,
        amsgrad=False,
        maximize=False,
        lr=optimizer.lr,
        beta1=optimizer.beta1,
        beta2=optimizer.beta2,
        eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        decoupled_weight_decay=isinstance(optimizer, AdamW),
    )


@dataclass
class FusedStepper:
    """The torch optimizer of one client's parameter, fused on the CPU."""

    optimizer: Optimizer
    _made: tuple[torch.optim.Optimizer, Tensor] | None = None

    def step(self, value: Tensor, gradient: Tensor) -> None:
        """Update `value` in place. It must be contiguous and use the same memory every time."""
        if self._made is None:
            leaf = value.detach()  # shares the memory
            self._made = IMPLEMENTATIONS[type(self.optimizer)].torch(self.optimizer, leaf), leaf
        torch_optimizer, leaf = self._made
        leaf.grad = gradient.contiguous()  # fused kernels ignore strides
        torch_optimizer.step()
        leaf.grad = None


def _torch_sgd(optimizer: Sgd, leaf: Tensor) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        [leaf],
        lr=optimizer.lr,
        momentum=optimizer.momentum,
        weight_decay=optimizer.weight_decay,
        fused=_fused(leaf),
    )


def _torch_adam(optimizer: Adam | AdamW, leaf: Tensor) -> torch.optim.Optimizer:
    kind = torch.optim.AdamW if isinstance(optimizer, AdamW) else torch.optim.Adam
    return kind(
        [leaf],
        lr=optimizer.lr,
        betas=(optimizer.beta1, optimizer.beta2),
        eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        fused=_fused(leaf),
    )


def _fused(leaf: Tensor) -> bool | None:
    return True if leaf.device.type == "cpu" else None  # None: torch's default


@dataclass(frozen=True)
class Implementation:
    """The implementations of one optimizer."""

    stacked: Callable[[Stepper, Any, Tensor, Tensor], None]
    torch: Callable[[Any, Tensor], torch.optim.Optimizer]


IMPLEMENTATIONS: Mapping[type[Optimizer], Implementation] = {
    Sgd: Implementation(_sgd, _torch_sgd),
    Adam: Implementation(_adaptive_step, _torch_adam),
    AdamW: Implementation(_adaptive_step, _torch_adam),
}
