"""The OOV adapter: an MLP from the embedding e of a word's spelling to its row in the output layer.

    start + W_L relu(... relu(W_1 norm(e) + b_1) ...) + b_L

In the paper the MLP is residual: it starts from e. It may also start from the row of the unknown word.

All of its parameters are one vector, so that adapters of any depth and width are a tensor of one name. They may have a
leading client axis. The order is: gain and bias of the normalization, then weight [out, in] and bias of each layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional


def adapter_size(hidden: Sequence[int], *, cells: int) -> int:
    """The number of parameters of an adapter with these hidden layers; without hidden layers it has none."""
    if not hidden:
        return 0
    return 2 * cells + sum((rows + 1) * columns for rows, columns in pairwise((cells, *hidden, cells)))


def new_adapter(hidden: Sequence[int], *, cells: int, scale: float, generator: torch.Generator | None = None) -> Tensor:
    """Normal with standard deviation `scale`, but for the normalization, which starts as the identity."""
    values = scale * torch.randn(adapter_size(hidden, cells=cells), generator=generator)
    values[:cells], values[cells : 2 * cells] = 1.0, 0.0
    return values


def adapt(embeddings: Tensor, adapter: Tensor, *, hidden: Sequence[int], start: Tensor) -> Tensor:
    """Rows [..., n, cells] of the output layer from embeddings [..., n, cells] and an adapter [..., parameters]. An
    adapter without parameters changes nothing."""
    cells = embeddings.shape[-1]
    if not adapter.shape[-1]:
        return start.expand_as(embeddings)
    gain, shift = (adapter[..., None, start : start + cells] for start in (0, cells))
    found = functional.layer_norm(embeddings, (cells,)) * gain + shift
    for number, (weight, bias) in enumerate(_layers(adapter, hidden, cells=cells)):
        found = (found.relu() if number else found) @ weight.mT + bias
    return start + found


def _layers(adapter: Tensor, hidden: Sequence[int], *, cells: int) -> Iterator[tuple[Tensor, Tensor]]:
    place = 2 * cells
    for rows, columns in pairwise((cells, *hidden, cells)):
        weight = adapter[..., place : place + rows * columns].unflatten(-1, (columns, rows))
        place += rows * columns
        yield weight, adapter[..., None, place : place + columns]
        place += columns
