"""-log p(token | prefix, tokens before it), by a language model's own code: padded, or packed into one row.

    [prefix a, a1, a2, a3, prefix b, b1, b2]   positions 0 1 2 3 0 1 2, and a mask that hides a from b

A packed row has no padding and reads the weights from memory only once; a large model is limited by memory bandwidth.
Packing needs a model that accepts positions and a custom mask; `can_pack` tests for it.

Both take `prefix` [n, vectors, width], `tokens` [n, L] and `length` [n]. The result is [n, L], zero beyond a text's
length.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

GROUP = 5  # utterances of similar length per padded batch; larger batches have more padding
ROW = 256  # maximum tokens in a row, so that attention, which is quadratic in them, does not dominate
PROBE = {"tokens": torch.tensor([[1, 2, 3], [3, 1, 0]]), "length": torch.tensor([3, 2])}


def padded_losses(backbone: nn.Module, prefix: Tensor, *, tokens: Tensor, length: Tensor) -> Tensor:
    """Batches utterances of similar length, to keep padding short."""
    if not len(length):
        return torch.zeros(tokens.shape, device=tokens.device)
    losses = []
    order = length.argsort(stable=True)
    for rows in order.split(GROUP):
        longest = max(int(length[rows].max()), 1)
        some = _group_losses(backbone, prefix[rows], tokens=tokens[rows, :longest].long(), length=length[rows])
        losses.append(functional.pad(some, (0, tokens.shape[1] - longest)))
    return torch.cat(losses)[order.argsort()]


def _group_losses(backbone: Any, prefix: Tensor, *, tokens: Tensor, length: Tensor) -> Tensor:
    real = torch.arange(tokens.shape[1], device=tokens.device) < length[:, None]
    words = backbone.get_input_embeddings()(tokens)
    mask = torch.cat((real.new_ones(prefix.shape[:2]), real), dim=1)
    logits = backbone(inputs_embeds=torch.cat((prefix, words), dim=1), attention_mask=mask.long()).logits
    # the logits at a position predict the next token; those at the last position predict nothing
    expected = logits[:, prefix.shape[1] - 1 : -1]
    losses = functional.cross_entropy(expected.flatten(0, 1), tokens.flatten(), reduction="none").view_as(tokens)
    return losses.masked_fill(~real, 0)


def can_pack(backbone: Any) -> bool:
    """Whether packed utterances have the same losses as padded ones."""
    model = backbone.get_base_model() if hasattr(backbone, "get_base_model") else backbone  # under an adapter
    if "position_ids" not in inspect.signature(model.forward).parameters or _has_local_attention(model.config):
        return False
    prefix = backbone.get_input_embeddings().weight.detach()[:2, None]
    with torch.no_grad():
        expected = padded_losses(backbone, prefix, **PROBE)
        try:
            found = packed_losses(backbone, prefix, **PROBE)
        except (RuntimeError, TypeError, ValueError, IndexError):  # its code does not support such a mask
            return False
    return torch.allclose(found, expected, rtol=1e-4, atol=1e-4)


def _has_local_attention(config: Any) -> bool:
    """Whether some layer has local attention, which a custom mask would override."""
    limits = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    kinds = getattr(config, "layer_types", None) or []
    return any(limit is not None for limit in limits) or any(kind != "full_attention" for kind in kinds)


def packed_losses(backbone: nn.Module, prefix: Tensor, *, tokens: Tensor, length: Tensor) -> Tensor:
    """Packs consecutive utterances of the batch into rows."""
    real = torch.arange(tokens.shape[1], device=tokens.device) < length[:, None]
    losses = [
        _row_losses(backbone, prefix[start:stop], tokens=tokens[start:stop].long(), real=real[start:stop])
        for start, stop in pack_rows(length + prefix.shape[1])
    ]
    none = torch.zeros(tokens.shape, device=tokens.device)
    return none.masked_scatter(real, torch.cat(losses)) if losses else none


def pack_rows(sizes: Tensor) -> Iterator[tuple[int, int]]:
    """Start and stop of consecutive utterances of at most `ROW` tokens in total; a longer one gets its own row."""
    start, filled = 0, 0
    for place, size in enumerate(sizes.tolist()):
        if filled and filled + size > ROW:
            yield start, place
            start, filled = place, 0
        filled += size
    if filled:
        yield start, len(sizes)


def _row_losses(backbone: Any, prefix: Tensor, *, tokens: Tensor, real: Tensor) -> Tensor:
    """The losses of all real tokens, one utterance after another."""
    vectors = prefix.shape[1]
    read = torch.cat((real.new_ones(prefix.shape[:2]), real), dim=1)
    inputs = torch.cat((prefix, backbone.get_input_embeddings()(tokens)), dim=1)[read]
    position = torch.arange(read.shape[1], device=read.device).expand_as(read)[read]
    utterance = torch.arange(len(read), device=read.device)[:, None].expand_as(read)[read]
    seen = (utterance[:, None] == utterance) & (position[:, None] >= position)
    mask = torch.zeros(seen.shape, device=seen.device).masked_fill(~seen, torch.finfo(torch.float32).min)
    logits = backbone(
        inputs_embeds=inputs[None], attention_mask=mask[None, None], position_ids=position[None], use_cache=False
    ).logits[0]
    # the position before each real token, whose logits predict it
    before = torch.cat((real.new_zeros(len(read), vectors - 1), real, real.new_zeros(len(read), 1)), dim=1)
    return functional.cross_entropy(logits[before[read]], tokens[real], reduction="none")
