"""Counter-based random numbers for stochastic losses: a function of a key and a position, not of the order of draws.

A method whose loss draws random numbers sets `LocalTraining.stochastic`. Every training batch then has a column `key`:
one 64-bit number per example, derived from the run's seed, the mode (round or personalize), the round, the user, the
phase, the step and the position of the example in the client's data. Draws with that key are the same in every engine
and do not depend on the other examples of the batch. Batches for prediction and evaluation have no such column, which
turns dropout off.

    hidden = dropout(hidden, batch.get("key"), p=0.2, site=0)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
import torch
from torch import Tensor

from homespun.core import seeds

KEY = "key"  # name of the batch column

# Steele, Lea and Flood (2014), "Fast splittable pseudorandom number generators": the golden-ratio increment
# and the finalizer constants of splitmix64.
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_BITS = 24  # precision of a float32 in [0, 1)


def step_key(seed: int, purpose: str, round: int, user: str, *, phase: int | str, step: int) -> int:
    """Return the key of one local step of one client; `phase` is the index of the phase in the method, or its
    stream."""
    return _to_signed(seeds.derive(seed, "draws", purpose, round, user, phase, step))


def example_keys(steps: Tensor, positions: Tensor) -> Tensor:
    """Return a key per example from the key of its step and its position in the client's data; the two broadcast."""
    return _mix(_mix(steps) + positions * _to_signed(_GOLDEN))


def add_keys(batch: dict[str, Tensor], steps: Sequence[int], rows: Tensor) -> dict[str, Tensor]:
    """Add the key column to a training batch. `rows` are positions: [n] for one client, [clients, n] for several."""
    step_keys = torch.tensor(steps, dtype=torch.int64)
    keys = example_keys(step_keys if rows.dim() == 1 else step_keys[:, None], rows.cpu())
    return {**batch, KEY: keys.to(rows.device)}


def uniform(key: Tensor, shape: Sequence[int], *, site: int) -> Tensor:
    """Draw float32 numbers in [0, 1) of shape key.shape + shape.

    `site` distinguishes several draws of a model with the same key. A number depends on the key, the site and its
    position in `shape`, not on the size of `shape`: padding does not change it.
    """
    bits = _mix(_counters(key, shape, site=site))
    return _shift_right(bits, 64 - _BITS).to(torch.float32) * 2.0**-_BITS


def is_at_least(key: Tensor, shape: Sequence[int], *, p: float, site: int) -> Tensor:
    """Return `uniform(key, shape, site=site) >= p` as int64, 0 or 1, in less time; 0 < p < 1."""
    # The last step of `_mix` does not change the high bits, of which a draw consists. They are compared as integers,
    # whose signed order is the unsigned one after flipping the sign. In-place operations are vectorized and stay in the
    # cache; a comparison that returns bool is not.
    bits = _counters(key, shape, site=site)
    for by, factor in ((30, _FIRST), (27, _SECOND)):
        bits.bitwise_xor_((bits >> by).bitwise_and_((1 << (64 - by)) - 1)).mul_(_to_signed(factor))
    smallest = ceil(np.float32(p) * 2.0**_BITS) - 2 ** (_BITS - 1)
    return bits.bitwise_xor_(-(2**63)).gt_((smallest << (64 - _BITS)) - 1)


def _counters(key: Tensor, shape: Sequence[int], *, site: int) -> Tensor:
    """The numbers whose mixed bits are the draws, in a new tensor."""
    offset = torch.zeros((), dtype=torch.int64, device=key.device)
    for axis, size in enumerate(shape):
        stride = _to_signed(_mix_int(axis + 1) | 1)
        along = torch.arange(size, dtype=torch.int64, device=key.device) * stride
        offset = offset[..., None] + along
    site_key = _mix(key + _to_signed(_mix_int(site)))
    return site_key.view(*key.shape, *[1] * len(shape)) + offset


def dropout(x: Tensor, key: Tensor | None, *, p: float, site: int) -> Tensor:
    """Set a share `p` of `x` to zero and divide the rest by 1 - p; without a key, return `x` unchanged.

    `key` has the leading axes of `x`: [n] for [n, ...], [clients, n] for [clients, n, ...].
    """
    if not 0 <= p < 1:
        raise ValueError(f"dropout: p is {p}; expected at least 0 and below 1")
    if key is None or p == 0:
        return x
    if x.shape[: key.dim()] != key.shape:
        raise ValueError(f"dropout: a key of shape {tuple(key.shape)} does not match x of shape {tuple(x.shape)}")
    kept = is_at_least(key, x.shape[key.dim() :], p=p, site=site)
    return x * (kept.to(x.dtype) / (1 - p))


def _mix(bits: Tensor) -> Tensor:
    """The finalizer of splitmix64 on int64, where products wrap around."""
    bits = (bits ^ _shift_right(bits, 30)) * _to_signed(_FIRST)
    bits = (bits ^ _shift_right(bits, 27)) * _to_signed(_SECOND)
    return bits ^ _shift_right(bits, 31)


def _shift_right(bits: Tensor, by: int) -> Tensor:
    """Logical right shift; the `>>` of torch is arithmetic."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _mix_int(number: int) -> int:
    """`_mix` for a Python integer, after one golden-ratio increment."""
    bits = ((number + 1) * _GOLDEN) % 2**64
    bits = ((bits ^ (bits >> 30)) * _FIRST) % 2**64
    bits = ((bits ^ (bits >> 27)) * _SECOND) % 2**64
    return bits ^ (bits >> 31)


def _to_signed(bits: int) -> int:
    return int(np.uint64(bits).astype(np.int64))
