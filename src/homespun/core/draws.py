"""Random numbers for stochastic losses: a function of a key and a place, not of the order in which they are drawn.

A method whose loss draws random numbers says so (`Method.stochastic`). Every training batch then has a column `key`,
one 64-bit number for each example, from the run's seed, the kind of work, the round, the user, the phase, the step and
the position of the example in the client's data. Numbers drawn by that key are the same in every engine, whatever
stands beside the example in its batch. Prediction and evaluation have no such column, and dropout is then off.

    hidden = dropout(hidden, batch.get("key"), p=0.2, site=0)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from homespun.core import seeds

KEY = "key"  # the column

# Steele, Lea and Flood (2014), "Fast splittable pseudorandom number generators": the golden ratio's odd multiple and
# the finalizer of splitmix64.
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_BITS = 24  # of a float32 between 0 and 1


def step_key(seed: int, purpose: str, round: int, user: str, *, phase: int, step: int) -> int:
    """The key of one local step of one client; `phase` is its place among the method's phases."""
    return _signed(seeds.derive(seed, "draws", purpose, round, user, phase, step))


def example_keys(steps: Tensor, positions: Tensor) -> Tensor:
    """A key for each example from the keys of its step and its position in the client's data; they broadcast."""
    return _mixed(_mixed(steps) + positions * _signed(_GOLDEN))


def with_keys(batch: dict[str, Tensor], steps: Sequence[int], rows: Tensor) -> dict[str, Tensor]:
    """A training batch with its keys. `rows` are positions, [n] of one client or [clients, n] of several."""
    of_steps = torch.tensor(steps, dtype=torch.int64)
    keys = example_keys(of_steps if rows.dim() == 1 else of_steps[:, None], rows.cpu())
    return {**batch, KEY: keys.to(rows.device)}


def uniform(key: Tensor, shape: Sequence[int], *, site: int) -> Tensor:
    """Float32 numbers in [0, 1) of shape key.shape + shape.

    `site` tells apart the places of a model that draw by the same key. A number depends on the key, the site and its
    own place in `shape`, not on how large `shape` is, so padding changes no number.
    """
    place = torch.zeros((), dtype=torch.int64, device=key.device)
    for axis, size in enumerate(shape):
        stride = _signed(_mixed_number(axis + 1) | 1)
        along = torch.arange(size, dtype=torch.int64, device=key.device) * stride
        place = place[..., None] + along
    here = _mixed(key + _signed(_mixed_number(site)))
    bits = _mixed(here.view(*key.shape, *[1] * len(shape)) + place)
    return _shifted(bits, 64 - _BITS).to(torch.float32) * 2.0**-_BITS


def dropout(x: Tensor, key: Tensor | None, *, p: float, site: int) -> Tensor:
    """`x` with a share `p` of its numbers set to zero and the others divided by 1 - p; without a key, `x` itself.

    `key` has the leading axes of `x`: [n] for [n, ...], [clients, n] for [clients, n, ...].
    """
    if not 0 <= p < 1:
        raise ValueError(f"dropout: p is {p}; expected at least 0 and below 1")
    if key is None or p == 0:
        return x
    if x.shape[: key.dim()] != key.shape:
        raise ValueError(f"dropout: a key of shape {tuple(key.shape)} for numbers of shape {tuple(x.shape)}")
    kept = uniform(key, x.shape[key.dim() :], site=site) >= p
    return x * (kept.to(x.dtype) / (1 - p))


def _mixed(bits: Tensor) -> Tensor:
    """splitmix64's finalizer on int64, whose products wrap around."""
    bits = (bits ^ _shifted(bits, 30)) * _signed(_FIRST)
    bits = (bits ^ _shifted(bits, 27)) * _signed(_SECOND)
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Shifted to the right as if unsigned: torch copies the sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _mixed_number(number: int) -> int:
    """The same of a Python number, after a step of the golden ratio."""
    bits = ((number + 1) * _GOLDEN) % 2**64
    bits = ((bits ^ (bits >> 30)) * _FIRST) % 2**64
    bits = ((bits ^ (bits >> 27)) * _SECOND) % 2**64
    return bits ^ (bits >> 31)


def _signed(bits: int) -> int:
    return int(np.uint64(bits).astype(np.int64))
