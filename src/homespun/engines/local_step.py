"""One local step of the fast engines: FedProx's pull, clipping, then the optimizer.

`stacked` and `summed` train many clients at once: every tensor has a leading client axis, and clients that are done
leave from the end, so a gradient may have fewer rows than its parameter. `alone` trains one client by torch's fused
optimizers, which go over a parameter once. `loop`, the oracle, uses none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from homespun.core.method import BuiltMethod, Phase, optimizers
from homespun.core.optimizers import Adam, AdamW, Optimizer, Sgd
from homespun.core.roles import SHARED
from homespun.core.tree import Tree
from homespun.engines.client import trainable_names

SMALLEST_NORM = 1e-6  # torch.nn.utils.clip_grad_norm_ adds it to the norm


@dataclass
class LocalStep:
    """The steps of one phase. It holds the optimizers' state, so a phase has one of its own."""

    phase: Phase
    chosen: Mapping[str, Optimizer]  # what is trained
    pulled: frozenset[str]  # what FedProx pulls towards the anchor
    anchor: Tree
    stacked: bool  # whether there is a leading client axis
    _steppers: dict[str, Stepper | FusedStepper] = field(default_factory=dict)

    def take(self, values: Tree, gradients: Mapping[str, Tensor | None], *, active: int | None = None) -> None:
        """Change `values` in place; with a client axis, those of the first `active` clients. A parameter without a
        gradient stands still, as with torch's optimizers."""
        found = {name: self._pull(name, values[name], one, active) for name, one in gradients.items()}
        whole = {name: one for name, one in found.items() if one is not None}
        if self.phase.clip_norm is not None:
            whole = clip_by_norm(whole, self.phase.clip_norm, stacked=self.stacked)
        for name, gradient in whole.items():
            if name not in self._steppers:
                self._steppers[name] = (Stepper if self.stacked else FusedStepper)(self.chosen[name])
            self._steppers[name].step(values[name], gradient)

    def _pull(self, name: str, value: Tensor, gradient: Tensor | None, active: int | None) -> Tensor | None:
        """The gradient with that of mu/2 |w - w_broadcast|^2."""
        if name not in self.pulled:
            return gradient
        value, anchor = value.detach(), self.anchor[name]
        if active is not None:
            value, anchor = value[:active], anchor[:active]
        pull = (value - anchor).mul_(self.phase.mu)
        return pull if gradient is None else gradient + pull


def local_step(built: BuiltMethod, phase: Phase, parameters: Tree, *, anchor: Tree, stacked: bool) -> LocalStep:
    """The steps of this phase on these parameters."""
    chosen = optimizers(phase, trainable_names(parameters))
    pulled = frozenset(built.partition.names(*SHARED)) & chosen.keys() if phase.mu else frozenset()
    return LocalStep(phase, chosen, pulled, anchor, stacked)


def clip_by_norm(gradients: Mapping[str, Tensor], largest: float, *, stacked: bool) -> dict[str, Tensor]:
    """Scaled down to this norm over all parameters together, each client's on its own: clip_grad_norm_."""
    if not gradients:
        return {}
    clients = 1 if stacked else 0
    norms = [torch.linalg.vector_norm(one.reshape(*one.shape[:clients], -1), dim=-1) for one in gradients.values()]
    total = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    factor = (largest / (total + SMALLEST_NORM)).clamp(max=1.0)
    return {name: one * factor.view((*factor.shape, *[1] * (one.dim() - clients))) for name, one in gradients.items()}


@dataclass
class Stepper:
    """An optimizer of one stacked parameter, of which the first rows may still be in training."""

    optimizer: Optimizer
    memory: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0

    def step(self, value: Tensor, gradient: Tensor) -> None:
        """Change the first rows of `value` in place, as many as the gradient has."""
        self.steps += 1
        TABLE[type(self.optimizer)].stacked(self, self.optimizer, value, gradient)

    def remembered(self, name: str, like: Tensor, rows: int) -> Tensor:
        return self.memory.setdefault(name, torch.zeros_like(like))[:rows]


def _sgd(stepper: Stepper, optimizer: Sgd, value: Tensor, gradient: Tensor) -> None:
    target = value[: len(gradient)]
    gradient = _decayed(gradient, target, optimizer.weight_decay)
    if optimizer.momentum:
        gradient = stepper.remembered("momentum", value, len(gradient)).mul_(optimizer.momentum).add_(gradient)
    target.add_(gradient, alpha=-optimizer.lr)


def _adam(stepper: Stepper, optimizer: Adam, value: Tensor, gradient: Tensor) -> None:
    gradient = _decayed(gradient, value[: len(gradient)], optimizer.weight_decay)
    _adaptive_step(stepper, optimizer, value, gradient)


def _adamw(stepper: Stepper, optimizer: AdamW, value: Tensor, gradient: Tensor) -> None:
    value[: len(gradient)].mul_(1 - optimizer.lr * optimizer.weight_decay)
    _adaptive_step(stepper, optimizer, value, gradient)


def _decayed(gradient: Tensor, target: Tensor, weight_decay: float) -> Tensor:
    return gradient.add(target, alpha=weight_decay) if weight_decay else gradient


def _adaptive_step(stepper: Stepper, optimizer: Adam | AdamW, value: Tensor, gradient: Tensor) -> None:
    active, steps = len(gradient), stepper.steps
    first, second = (stepper.remembered(name, value, active) for name in ("first", "second"))
    first.lerp_(gradient, 1 - optimizer.beta1)
    second.mul_(optimizer.beta2).addcmul_(gradient, gradient, value=1 - optimizer.beta2)
    correction = (1 - optimizer.beta2**steps) ** 0.5
    denominator = (second.sqrt() / correction).add_(optimizer.eps)
    value[:active].addcdiv_(first, denominator, value=-optimizer.lr / (1 - optimizer.beta1**steps))


@dataclass
class FusedStepper:
    """An optimizer of one client's parameter: torch's own, fused where the device is the CPU."""

    optimizer: Optimizer
    _made: tuple[torch.optim.Optimizer, Tensor] | None = None

    def step(self, value: Tensor, gradient: Tensor) -> None:
        """Change `value` in place. It has to be contiguous, and the same memory every time."""
        if self._made is None:
            leaf = value.detach()  # shares the memory
            self._made = TABLE[type(self.optimizer)].torch(self.optimizer, leaf), leaf
        torch_optimizer, leaf = self._made
        leaf.grad = gradient.contiguous()  # fused kernels walk through memory, whatever the strides say
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
    return True if leaf.device.type == "cpu" else None  # None: torch's own choice


@dataclass(frozen=True)
class Arithmetic:
    """How one kind of optimizer is carried out."""

    stacked: Callable[[Stepper, Any, Tensor, Tensor], None]
    torch: Callable[[Any, Tensor], torch.optim.Optimizer]


TABLE: Mapping[type[Optimizer], Arithmetic] = {
    Sgd: Arithmetic(_sgd, _torch_sgd),
    Adam: Arithmetic(_adam, _torch_adam),
    AdamW: Arithmetic(_adamw, _torch_adam),
}
