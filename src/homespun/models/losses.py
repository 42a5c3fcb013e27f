"""-log p(token | prefix, tokens before it), by a language model's own code: padded, or packed into one row.

    [prefix a, a1, a2, a3, prefix b, b1, b2]   positions 0 1 2 3 0 1 2, and a mask that hides a from b

A packed row has no padding and reads the weights from memory only once; a large model is limited by memory bandwidth.
Packing needs a model that accepts positions and a custom mask; `can_pack` tests for it.

Both take `prefix` [n, vectors, width], `tokens` [n, L], `length` [n] and, if the first tokens of a text are only read,
`start` [n], the first token that is predicted. The result is [n, L], zero before a text's start and beyond its length.
Logits are computed only where a token is predicted, if the model's code supports it: with a large vocabulary they take
a good part of the time.
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


def padded_losses(
    backbone: nn.Module, prefix: Tensor, *, tokens: Tensor, length: Tensor, start: Tensor | None = None
) -> Tensor:
    """Batches utterances of similar length, to keep padding short."""
    if not len(length):
        return torch.zeros(tokens.shape, device=tokens.device)
    first = torch.zeros_like(length) if start is None else start
    losses = []
    order = length.argsort(stable=True)
    for rows in order.split(GROUP):
        longest = max(int(length[rows].max()), 1)
        some = _group_losses(
            backbone, prefix[rows], tokens=tokens[rows, :longest].long(), length=length[rows], start=first[rows]
        )
        losses.append(functional.pad(some, (0, tokens.shape[1] - longest)))
    return torch.cat(losses)[order.argsort()]


def _group_losses(backbone: Any, prefix: Tensor, *, tokens: Tensor, length: Tensor, start: Tensor) -> Tensor:
    place = torch.arange(tokens.shape[1], device=tokens.device)
    real = place < length[:, None]
    words = backbone.get_input_embeddings()(tokens)
    mask = torch.cat((real.new_ones(prefix.shape[:2]), real), dim=1)
    # the logits at a position predict the next token; those at the last position predict nothing
    first = min(int(start.min()), tokens.shape[1] - 1)
    logits = logits_at(
        backbone,
        place[first:] + (prefix.shape[1] - 1),
        inputs_embeds=torch.cat((prefix, words), dim=1),
        attention_mask=mask.long(),
    )
    targets = tokens[:, first:]
    losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    scored = real & (place >= start[:, None])
    return functional.pad(losses, (first, 0)).masked_fill(~scored, 0)


def logits_at(backbone: Any, positions: Tensor, **inputs: Any) -> Tensor:
    """The logits [rows, positions, vocabulary] at these positions of all rows."""
    if "logits_to_keep" in inspect.signature(_model(backbone).forward).parameters:
        found: Tensor = backbone(**inputs, logits_to_keep=positions).logits
        return found
    return backbone(**inputs).logits[:, positions]


def _model(backbone: Any) -> Any:
    """The model itself, under an adapter."""
    return backbone.get_base_model() if hasattr(backbone, "get_base_model") else backbone


def can_pack(backbone: Any) -> bool:
    """Whether packed utterances have the same losses as padded ones."""
    model = _model(backbone)
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


def packed_losses(
    backbone: nn.Module, prefix: Tensor, *, tokens: Tensor, length: Tensor, start: Tensor | None = None
) -> Tensor:
    """Packs consecutive utterances of the batch into rows."""
    place = torch.arange(tokens.shape[1], device=tokens.device)
    real = place < length[:, None]
    scored = real if start is None else real & (place >= start[:, None])
    losses = []
    for first, stop in pack_rows(length + prefix.shape[1]):
        some = slice(first, stop)
        losses.append(
            _row_losses(backbone, prefix[some], tokens=tokens[some].long(), real=real[some], scored=scored[some])
        )
    none = torch.zeros(tokens.shape, device=tokens.device)
    return none.masked_scatter(scored, torch.cat(losses)) if losses else none


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


def _row_losses(backbone: Any, prefix: Tensor, *, tokens: Tensor, real: Tensor, scored: Tensor) -> Tensor:
    """The losses of all scored tokens, one utterance after another."""
    vectors = prefix.shape[1]
    read = torch.cat((real.new_ones(prefix.shape[:2]), real), dim=1)
    inputs = torch.cat((prefix, backbone.get_input_embeddings()(tokens)), dim=1)[read]
    position = torch.arange(read.shape[1], device=read.device).expand_as(read)[read]
    utterance = torch.arange(len(read), device=read.device)[:, None].expand_as(read)[read]
    seen = (utterance[:, None] == utterance) & (position[:, None] >= position)
    mask = torch.zeros(seen.shape, device=seen.device).masked_fill(~seen, torch.finfo(torch.float32).min)
    # the position before each scored token, whose logits predict it
    before = torch.cat((scored.new_zeros(len(read), vectors - 1), scored, scored.new_zeros(len(read), 1)), dim=1)
    (logits,) = logits_at(
        backbone,
        before[read].nonzero()[:, 0],
        inputs_embeds=inputs[None],
        attention_mask=mask[None, None],
        position_ids=position[None],
        use_cache=False,
    )
    return functional.cross_entropy(logits, tokens[scored], reduction="none")
