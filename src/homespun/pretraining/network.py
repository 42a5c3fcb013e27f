"""The network, a Hugging Face GPT-2, and a loss that never holds all logits at once.

Style vectors: in training, most sequences have two learned vectors added to the embedding of END, one for their source
and one for their stretch of it. So the network learns that a vector at the first position carries information about
the words to come, which is the role of a personal embedding later. The vectors are not part of the model. Sequences
without them keep the usual meaning of END alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from homespun.core.seeds import derive
from homespun.core.settings import Settings
from homespun.pretraining.corpus import END_ID, PADDING

CHUNK = 256  # rows of logits computed at a time, so that they stay in the cache


class NetworkSettings(Settings):
    """The network's size."""

    layers: int = 4
    """Transformer blocks."""
    width: int = 256
    """Size of an embedding."""
    heads: int = 8
    """Attention heads in a block."""


def build_network(settings: NetworkSettings, *, vocabulary: int, positions: int, seed: int) -> Any:
    """A GPT-2 with random weights. Without dropout, because text is rarely read twice."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=positions,
        n_layer=settings.layers,
        n_embd=settings.width,
        n_head=settings.heads,
        activation_function="gelu_pytorch_tanh",  # the same function as gelu_new, in one kernel
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=END_ID,
        eos_token_id=END_ID,
    )
    with torch.random.fork_rng():
        torch.manual_seed(derive(seed, "weights") >> 1)
        return GPT2LMHeadModel(config)


class _MeanLoss(torch.autograd.Function):
    """Mean cross-entropy of `hidden @ weight.T`. The forward pass also computes the gradient, chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        count = len(targets)
        hidden_gradient, weight_gradient = torch.empty_like(hidden), torch.zeros_like(weight)
        total = hidden.new_zeros(())
        space = hidden.new_empty(min(CHUNK, count), len(weight))
        for start in range(0, count, CHUNK):
            rows, wanted = hidden[start : start + CHUNK], targets[start : start + CHUNK, None]
            logits = torch.mm(rows, weight.T, out=space[: len(rows)])
            logits -= logits.amax(1, keepdim=True)
            picked = logits.gather(1, wanted)
            sums = logits.exp_().sum(1, keepdim=True)
            total += (sums.log() - picked).sum()
            logits /= sums * count
            logits.scatter_add_(1, wanted, torch.full_like(picked, -1 / count))
            torch.mm(logits, weight, out=hidden_gradient[start : start + CHUNK])
            weight_gradient.addmm_(logits.T, rows)
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        return total / count

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, None]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return hidden_gradient * gradients[0], weight_gradient * gradients[0], None


def mean_loss(network: nn.Module, rows: Tensor, style: Tensor | None = None) -> Tensor:
    """Mean loss of all tokens of `rows` after the first; padding is neither read nor predicted.

    `style` has a vector for each row.
    """
    read, targets = rows[:, :-1], rows[:, 1:]
    there = targets != PADDING
    body: Any = network.transformer
    embedded = body.wte(read.clamp(min=0))
    if style is not None:
        embedded = embedded + (read == END_ID)[..., None] * style[:, None]
    hidden = body(inputs_embeds=embedded, use_cache=False).last_hidden_state
    return _MeanLoss.apply(hidden[there], body.wte.weight, targets[there])
