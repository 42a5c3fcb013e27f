"""Losses of words under an output layer with a large vocabulary, for many clients with their own weights.

The output layer is most of a word-level model's work. Logits are computed only where there is a word to predict, one
client at a time in blocks, and the gradient is written by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from homespun.models import products
from homespun.models.suggestion_ranks import NOTHING, Ranking

BLOCK = 256  # positions whose logits are computed at once


def word_losses(
    states: Tensor, *, weight: Tensor, bias: Tensor, targets: Tensor, own: Sequence[Tensor] | None = None
) -> Tensor:
    """Cross-entropy [C, P] of each target, 0 where the target is NOTHING.

    states [C, P, H], weight [C, V, H], bias [C, V], targets [C, P]; `own` are more rows [words, H + 1] of each client's
    output layer, with their bias in the last column, for the targets from V on.
    """
    own = _nothing_own(weight) if own is None else own
    return _WordLosses.apply(states, weight, bias, targets, *own)


@torch.no_grad()
def word_ranks(
    states: Tensor,
    *,
    weight: Tensor,
    bias: Tensor,
    targets: Tensor,
    rankings: Sequence[Ranking],
    own: Sequence[Tensor] | None = None,
) -> Tensor:
    """The ranks and saved letters [C, P, 2] of the targets of each client, by its ranking."""
    own = _nothing_own(weight) if own is None else own
    found = states.new_zeros(*targets.shape, 2)
    for client, rows in _blocks(targets):
        logits = _logits(states[client, rows], weight[client], bias[client], own[client])
        found[client, rows] = rankings[client](logits, targets[client, rows])
    return found


class _WordLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, *own: Tensor) -> Tensor:
        losses = states.new_zeros(targets.shape)
        learns = any(ctx.needs_input_grad)
        kept: list[Tensor] = []
        for client, rows in _blocks(targets):
            logits = _logits(states[client, rows], weight[client], bias[client], own[client])
            losses[client, rows] = _losses_in_place(logits, targets[client, rows])
            kept += [logits] if learns else []
        if learns:
            ctx.save_for_backward(states, weight, targets, *own, *kept)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, targets, *rest = ctx.saved_tensors
        clients, words = weight.shape[:2]
        own, kept = rest[:clients], rest[clients:]
        grad_states, grad_own = torch.zeros_like(states), [torch.zeros_like(one) for one in own]
        grad_weight, grad_bias = torch.empty_like(weight), weight.new_zeros(weight.shape[:2])
        begun: set[int] = set()
        for (client, rows), gradient in zip(_blocks(targets), kept, strict=True):
            # The states are multiplied by the gradients of the losses: there are far more logits than states.
            scale = grad[client, rows]
            scaled = states[client, rows] * scale[:, None]
            of_vocabulary, of_own = gradient[:, :words], gradient[:, words:]
            grad_states[client, rows] = (
                torch.addmm(products.mm(of_vocabulary, weight[client]), of_own, own[client][:, :-1]) * scale[:, None]
            )
            grad_own[client][:, :-1].addmm_(of_own.T, scaled)
            grad_own[client][:, -1].addmv_(of_own.T, scale)
            grad_bias[client].addmv_(of_vocabulary.T, scale)
            if client in begun:
                grad_weight[client].addmm_(of_vocabulary.T, scaled)
            else:  # writes without reading zeros first
                products.mm(of_vocabulary.T, scaled, out=grad_weight[client])
                begun.add(client)
        for client in set(range(clients)) - begun:
            grad_weight[client].zero_()
        return grad_states, grad_weight, grad_bias, None, *grad_own


def _nothing_own(weight: Tensor) -> Sequence[Tensor]:
    """Rows for no own words."""
    return [weight.new_zeros(0, weight.shape[2] + 1)] * len(weight)


def _logits(states: Tensor, weight: Tensor, bias: Tensor, own: Tensor) -> Tensor:
    """Scores [rows, V + N] of the vocabulary's and of own words."""
    if not len(own):
        return products.addmm(bias, states, weight.T)
    logits = states.new_empty(len(states), len(weight) + len(own))
    logits[:, : len(weight)] = products.addmm(bias, states, weight.T)
    torch.addmm(own[:, -1], states, own[:, :-1].T, out=logits[:, len(weight) :])
    return logits


def _losses_in_place(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of each row. `logits` become its gradient: probabilities, less 1 at the target."""
    target = targets[:, None]
    chosen = logits.gather(1, target)[:, 0]
    highest = logits.amax(dim=1)
    torch.softmax(logits, dim=1, out=logits)
    # The sum of exponentials is 1 / p for the highest logit; the target's own p may be too small for a float.
    losses = highest - chosen - logits.amax(dim=1).log()
    logits.scatter_add_(1, target, logits.new_full((), -1.0).expand(target.shape))
    return losses


def _blocks(targets: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Each client's positions with a word to predict, in blocks."""
    for client, row in enumerate(targets):
        positions = (row != NOTHING).nonzero()[:, 0]
        for rows in positions.split(BLOCK):
            yield client, rows
