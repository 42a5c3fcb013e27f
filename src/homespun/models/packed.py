"""Utterances end to end in one row, each blind to its neighbours: nothing is padded, and weights are fetched once.

    [prefix a, a1, a2, a3, prefix b, b1, b2]   positions 0 1 2 3 0 1 2, and a mask by which b sees nothing of a

A large model waits for its weights more than for its numbers, so one row of a whole batch takes little longer than one
utterance. It needs a model that takes positions and a mask of its own; `can_pack` tries whether it does.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ROW = 256  # tokens in a row at the most, so that attention, which is square in them, stays the smaller part
PROBE = torch.tensor([[1, 2, 3], [3, 1, 0]]), torch.tensor([3, 2])


def can_pack(backbone: nn.Module) -> bool:
    """Whether two utterances in one row give the losses that they give by themselves."""
    if "position_ids" not in inspect.signature(backbone.forward).parameters:
        return False
    words: Any = backbone.get_input_embeddings()  # type: ignore[operator]  # transformers' models have it
    tokens, length = PROBE
    prefix = words.weight.detach()[:2, None]
    with torch.no_grad():
        try:
            together = packed_losses(backbone, prefix, tokens=tokens, length=length)
        except (RuntimeError, TypeError, ValueError, IndexError):  # its code makes something else of such a mask
            return False
        alone = [
            packed_losses(backbone, prefix[[row]], tokens=tokens[[row], :size], length=length[[row]])
            for row, size in enumerate(length.tolist())
        ]
    expected = torch.cat([functional.pad(one, (0, tokens.shape[1] - one.shape[1])) for one in alone])
    return torch.allclose(together, expected, rtol=1e-4, atol=1e-4)


def packed_losses(backbone: nn.Module, prefix: Tensor, *, tokens: Tensor, length: Tensor) -> Tensor:
    """-log p(token | prefix, tokens before it) [n, L], zero beyond a text's length."""
    real = torch.arange(tokens.shape[1]) < length[:, None]
    losses = [
        _row_losses(backbone, prefix[start:stop], tokens=tokens[start:stop].long(), real=real[start:stop])
        for start, stop in rows(length + prefix.shape[1])
    ]
    if not losses:
        return torch.zeros(tokens.shape)
    return torch.zeros(tokens.shape).masked_scatter(real, torch.cat(losses))


def rows(sizes: Tensor) -> Iterator[tuple[int, int]]:
    """Neighbours whose sizes add up to at most `ROW`; a longer one has a row of its own."""
    start, filled = 0, 0
    for place, size in enumerate(sizes.tolist()):
        if filled and filled + size > ROW:
            yield start, place
            start, filled = place, 0
        filled += size
    if filled:
        yield start, len(sizes)


def _row_losses(backbone: Any, prefix: Tensor, *, tokens: Tensor, real: Tensor) -> Tensor:
    """The losses of all real tokens, one utterance after the other."""
    vectors = prefix.shape[1]
    read = torch.cat((real.new_ones(prefix.shape[:2]), real), dim=1)
    inputs = torch.cat((prefix, backbone.get_input_embeddings()(tokens)), dim=1)[read]
    position = torch.arange(read.shape[1]).expand_as(read)[read]
    utterance = torch.arange(len(read))[:, None].expand_as(read)[read]
    seen = (utterance[:, None] == utterance) & (position[:, None] >= position)
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    logits = backbone(
        inputs_embeds=inputs[None], attention_mask=mask[None, None], position_ids=position[None], use_cache=False
    ).logits[0]
    # the place before a token says what is expected there
    before = torch.cat((real.new_zeros(len(read), vectors - 1), real, real.new_zeros(len(read), 1)), dim=1)
    return functional.cross_entropy(logits[before[read]], tokens[real], reduction="none")
