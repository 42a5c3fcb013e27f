"""Where the rows of a batch of texts lie in memory: end to end without padding, and by head for attention.

`frozen_gpt2` has the symbols (n, L, p, S, T, h, e) and computes on these rows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

CHUNK_ROWS = 1024  # a chunk of texts has about this many rows
MAX_WASTED_SCORES = 1000  # padded attention scores that take as long as one more group of texts


@dataclass(frozen=True)
class AttentionGroup:
    """Texts of similar length. Their attention is computed in one batch, padded to the longest of them."""

    texts: int  # m
    length: int  # S of the longest text
    places: slice  # the group's m h S places among those of all groups
    scores: slice  # the group's m h S^2 attention scores among those of all groups


@dataclass(frozen=True)
class HeadLayout:
    """The layout of vectors for attention: text after text, each as [h, S] vectors of size e, padded at the end.

    Vectors are gathered by index; the indices count the vectors of [T, d] viewed as [T h, e].
    """

    groups: tuple[AttentionGroup, ...]
    causal: Tensor  # [longest, longest] the causal mask: 0 or minus infinity
    sources: Tensor  # [P] index of the vector at each place; at a padding place, of any vector of the same text
    padding: Tensor  # the padding places
    places: Tensor  # [T h] the place of each vector
    sources_qkv: Tensor  # [3 P] the same for queries, keys and values together, in this order
    places_qkv: Tensor  # [3 T h]


@dataclass(frozen=True)
class RowLayout:
    """Where the rows of a chunk of texts, shortest text first, come from and where their losses go."""

    texts: Tensor  # [m] indices of the texts in the caller's batch
    vectors: int  # p
    words: Tensor  # [T]; any word at a prefix row
    positions: Tensor  # [T]
    prefix_rows: Tensor  # [m p]
    predicting: Tensor  # [R] rows that predict a token
    targets: Tensor  # [R] the tokens they predict
    losses: Tensor  # [R] positions of their losses in the flattened [n, L]
    heads: HeadLayout


def lay_out_rows(
    tokens: Tensor, lengths: Tensor, *, vectors: int, heads: int, starts: Tensor | None = None
) -> list[RowLayout]:
    """One layout per chunk of about `CHUNK_ROWS` rows. Empty texts are skipped. `starts` [n]: the first token of each
    text that is predicted."""
    order = lengths.argsort(stable=True)
    order = order[lengths[order] > 0]
    if not len(order):
        return []
    firsts = (torch.zeros_like(lengths) if starts is None else starts)[order]
    inputs = lengths[order] + (vectors - 1)
    ends = inputs.cumsum(0)
    chunks = -(-int(ends[-1]) // CHUNK_ROWS)
    sizes = torch.bincount((ends - inputs) * chunks // ends[-1]).tolist()
    return [
        _layout(tokens, texts=texts, inputs=each, firsts=some, vectors=vectors, heads=heads)
        for texts, each, some in zip(order.split(sizes), inputs.split(sizes), firsts.split(sizes), strict=True)
        if len(texts)
    ]


def _layout(tokens: Tensor, *, texts: Tensor, inputs: Tensor, firsts: Tensor, vectors: int, heads: int) -> RowLayout:
    starts = inputs.cumsum(0) - inputs
    positions = torch.arange(int(inputs.sum())) - starts.repeat_interleave(inputs)
    first_word = (texts * tokens.shape[1]).repeat_interleave(inputs)  # of the row's text, in the flattened tokens
    predicting = (positions >= vectors - 1 + firsts.repeat_interleave(inputs)).nonzero()[:, 0]
    losses = (first_word + positions).index_select(0, predicting) - (vectors - 1)
    words = tokens.flatten()
    return RowLayout(
        texts=texts,
        vectors=vectors,
        words=words.index_select(0, first_word + (positions - vectors).clamp_min(0)),
        positions=positions,
        prefix_rows=(starts[:, None] + torch.arange(vectors)).flatten(),
        predicting=predicting,
        targets=words.index_select(0, losses),
        losses=losses,
        heads=_head_layout(inputs, heads),
    )


def _head_layout(inputs: Tensor, heads: int) -> HeadLayout:
    groups = _groups(inputs, heads)
    padded = torch.tensor([group.length for group in groups]).repeat_interleave(
        torch.tensor([group.texts for group in groups])
    )
    # For every place: the index of its text, and its row within that text.
    text = torch.arange(len(inputs)).repeat_interleave(heads * padded)
    within = torch.arange(len(text)) - (heads * (padded.cumsum(0) - padded)).index_select(0, text)
    padded, lengths = padded.index_select(0, text), inputs.index_select(0, text)
    head, row = within // padded, within % padded
    first_row = (inputs.cumsum(0) - inputs).index_select(0, text)
    row_of_all = first_row + torch.minimum(row, lengths - 1)
    sources = row_of_all * heads + head
    is_real = row < lengths
    real = is_real.nonzero()[:, 0]
    places = torch.empty(int(inputs.sum()) * heads, dtype=torch.int64)
    places[sources.index_select(0, real)] = real
    kinds = torch.arange(3)
    longest = groups[-1].length
    return HeadLayout(
        groups=groups,
        causal=torch.full((longest, longest), float("-inf")).triu_(1),
        sources=sources,
        padding=(~is_real).nonzero()[:, 0],
        places=places,
        sources_qkv=(kinds[:, None] * heads + (sources + 2 * heads * row_of_all)).flatten(),
        places_qkv=(kinds[:, None] * len(sources) + places.view(-1, 1, heads)).flatten(),
    )


def to_device(layout: RowLayout, device: torch.device) -> RowLayout:
    def moved(value: Any) -> dict[str, Any]:
        tensors = {one.name: getattr(value, one.name) for one in fields(value)}
        return {name: one.to(device) for name, one in tensors.items() if isinstance(one, Tensor)}

    if device.type == "cpu":
        return layout
    return replace(layout, **moved(layout), heads=replace(layout.heads, **moved(layout.heads)))


def _groups(inputs: Tensor, heads: int) -> tuple[AttentionGroup, ...]:
    """Group texts of similar length, until padding would cost more than another group."""
    lengths, counts = (each.tolist() for each in inputs.unique_consecutive(return_counts=True))
    found: list[tuple[int, int]] = []
    wasted = 0
    for length, texts in zip(reversed(lengths), reversed(counts), strict=True):
        if found:
            longest, others = found[-1]
            wasted += texts * (longest**2 - length**2)
            if wasted <= MAX_WASTED_SCORES:
                found[-1] = longest, others + texts
                continue
        found.append((length, texts))
        wasted = 0
    groups: list[AttentionGroup] = []
    place = score = 0
    for length, texts in reversed(found):
        places, scores = texts * heads * length, texts * heads * length**2
        groups.append(AttentionGroup(texts, length, slice(place, place + places), slice(score, score + scores)))
        place, score = place + places, score + scores
    return tuple(groups)
