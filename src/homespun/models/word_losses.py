"""Losses of words under an output layer with a large vocabulary, for many clients with their own weights.

The output layer is most of a word-level model's work. Logits are computed only where there is a word to predict, one
client at a time in blocks, and the gradient is written by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 256  # positions whose logits are computed at once
NOTHING = -1  # target of a position without a word to predict


def word_losses(states: Tensor, *, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy [C, P] of each target, 0 where the target is NOTHING.

    states [C, P, H], weight [C, V, H], bias [C, V], targets [C, P].
    """
    return _WordLosses.apply(states, weight, bias, targets)


class _WordLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        losses = states.new_zeros(targets.shape)
        learns = any(ctx.needs_input_grad)
        kept: list[Tensor] = []
        for client, rows in _blocks(targets):
            logits = torch.addmm(bias[client], states[client, rows], weight[client].T)
            loss, total = _losses_in_place(logits, targets[client, rows])
            losses[client, rows] = loss
            kept += [logits, total] if learns else []
        if learns:
            ctx.save_for_backward(states, weight, targets, *kept)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, targets, *kept = ctx.saved_tensors
        grad_states = torch.zeros_like(states)
        grad_weight, grad_bias = torch.empty_like(weight), weight.new_zeros(weight.shape[:2])
        begun: set[int] = set()
        for (client, rows), gradient, total in zip(_blocks(targets), kept[::2], kept[1::2], strict=True):
            gradient *= (grad[client, rows] / total)[:, None]
            grad_states[client, rows] = gradient @ weight[client]
            grad_bias[client] += gradient.sum(dim=0)
            if client in begun:
                grad_weight[client].addmm_(gradient.T, states[client, rows])
            else:  # writes without reading zeros first
                torch.mm(gradient.T, states[client, rows], out=grad_weight[client])
                begun.add(client)
        for client in set(range(len(weight))) - begun:
            grad_weight[client].zero_()
        return grad_states, grad_weight, grad_bias, None


def _losses_in_place(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each row, and the row's sum of exponentials. `logits` become the gradient, times that sum."""
    target = targets[:, None]
    highest = logits.amax(dim=1, keepdim=True)
    chosen = logits.gather(1, target) - highest
    total = logits.sub_(highest).exp_().sum(dim=1, keepdim=True)
    logits.scatter_add_(1, target, -total)
    return (total.log() - chosen)[:, 0], total[:, 0]


def _blocks(targets: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Each client's positions with a word to predict, in blocks."""
    for client, row in enumerate(targets):
        positions = (row != NOTHING).nonzero()[:, 0]
        for rows in positions.split(BLOCK):
            yield client, rows
