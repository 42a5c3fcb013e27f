"""Gaussian noise for releases.

It comes from the operating system's cryptographic random number generator, so that it cannot be reproduced from a run's
seed and subtracted. A seeded source is for tests and for experiments that must be repeatable: it gives no protection,
and a run that uses it reports so.

Floating-point numbers are denser near zero. The possible values of a sum of two of them depend on both, so the last
bits of a release reveal which sums it cannot come from (Mironov, 2012). Therefore noise is added in float64, and the
result is rounded to a much coarser uniform grid, whose step depends on the standard deviation of the noise alone, as in
Google's notes on secure noise generation. Rounding after the noise is post-processing of the Gaussian mechanism and
does not change the sensitivity. A step holds 2^36 float64 numbers near one standard deviation, so that its probability
is that of a real Gaussian to about one part in 2^36.

Two alternatives were rejected. Rounding before the noise increases the sensitivity by the square root of the dimension
times the step. The discrete Gaussian (Canonne, Kamath and Steinke, 2020) is exact, but needs that rounding and a
rejection sampler of integers for each element.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import frexp, ldexp
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from homespun.core import seeds

Normal: TypeAlias = Callable[[int], np.ndarray]  # count -> that many independent standard normal numbers, float64

GRID_BITS = 16  # float32 has 24, so grid points up to 128 standard deviations are exact in it


def secure_uniform(count: int) -> np.ndarray:
    """Uniform numbers strictly between 0 and 1, with 53 random bits each."""
    bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(11)
    return (bits + 0.5) * 2.0**-53


def secure_normal(count: int) -> np.ndarray:
    """Standard normal numbers by the Box-Muller transform."""
    pairs = (count + 1) // 2
    uniform = secure_uniform(2 * pairs)
    radius, angle = np.sqrt(-2 * np.log(uniform[:pairs])), 2 * np.pi * uniform[pairs:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def seeded_normal(seed: int, *purpose: int | str) -> Normal:
    generator = seeds.numpy_generator(seed, "insecure noise", *purpose)
    return lambda count: generator.standard_normal(count)


def grid_of(deviation: float) -> float:
    """The step between released numbers: the power of two above 2^-17 and up to 2^-16 of the standard deviation."""
    _, exponent = frexp(deviation)  # 2^(exponent - 1) <= deviation < 2^exponent
    return ldexp(1.0, exponent - 1 - GRID_BITS)


def with_noise(values: Tensor, normal: Normal, *, deviation: float) -> Tensor:
    """Add noise in float64 and round to the grid."""
    grid = grid_of(deviation)
    drawn = torch.from_numpy(deviation * normal(values.numel())).view(values.shape)
    on_grid = drawn.add_(values).div_(grid).round_().mul_(grid)  # exact except for round_(): the grid is a power of two
    return on_grid.add_(0.0)  # turn -0.0 into 0.0: its sign would reveal the side of zero
