"""The network, as Hugging Face's GPT-2 has it, and a loss that does not hold all logits at once.

Voices: while it is trained, most sequences have a vector added to the embedding of END, one for the source and one
for the stretch of it they are from, and these vectors are learned along. So the network learns what a vector in the
first place can tell it about the words to come, which is what a personal embedding is later going to do. The vectors
are not part of the model; the sequences without them keep END alone what it is to any other language model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from homespun.core.seeds import derive
from homespun.core.settings import Settings
from homespun.pretraining.corpus import END_ID, PADDING

CHUNK = 256  # rows of logits at a time: they stay in the cache


class NetworkSettings(Settings):
    """The network's size."""

    layers: int = 4
    """Transformer blocks."""
    width: int = 256
    """Size of an embedding."""
    heads: int = 8
    """Attention heads in a block."""


def build_network(settings: NetworkSettings, *, vocabulary: int, positions: int, seed: int) -> Any:
    """A GPT-2 with fresh weights. Nothing is dropped out: the text is hardly read twice."""
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
    """Mean cross-entropy of `hidden @ weight.T`. The gradient is made on the way, chunk by chunk."""

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


def mean_loss(network: nn.Module, rows: Tensor, voices: Tensor | None = None) -> Tensor:
    """Mean loss of every token of `rows` after the first; padding is neither read nor predicted.

    `voices` has a vector for each row.
    """
    read, targets = rows[:, :-1], rows[:, 1:]
    there = targets != PADDING
    body: Any = network.transformer
    embedded = body.wte(read.clamp(min=0))
    if voices is not None:
        embedded = embedded + (read == END_ID)[..., None] * voices[:, None]
    hidden = body(inputs_embeds=embedded, use_cache=False).last_hidden_state
    return _MeanLoss.apply(hidden[there], body.wte.weight, targets[there])
