"""The optimizers of local training, with torch's names and semantics.

An optimizer is a value; its state is held by the engine and reset in every phase. As in torch, weight decay applies to
the whole parameter, including rows of a keyed parameter that a client's examples do not refer to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Sgd:
    """`torch.optim.SGD`; weight decay adds weight_decay * w to the gradient.

    Example:
        >>> Sgd(0.1, momentum=0.9)
        Sgd(lr=0.1, momentum=0.9, weight_decay=0.0)
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Adam:
    """`torch.optim.Adam`; weight decay adds weight_decay * w to the gradient, and so to both moments.

    Example:
        >>> Adam(0.001).eps
        1e-08
    """

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0


@dataclass(frozen=True)
class AdamW:
    """`torch.optim.AdamW`; weight decay multiplies w by 1 - lr * weight_decay before the step.

    Example:
        >>> AdamW(0.001).weight_decay
        0.01
    """

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01


Optimizer: TypeAlias = Sgd | Adam | AdamW


def is_plain(optimizer: Optimizer) -> bool:
    """Whether a step is just -lr * gradient, so that the steps of clients can be summed as gradients."""
    return isinstance(optimizer, Sgd) and not optimizer.momentum and not optimizer.weight_decay
