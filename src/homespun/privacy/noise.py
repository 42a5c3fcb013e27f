"""Gaussian noise for releases.

It comes from the operating system's cryptographic source, so that nobody who knows a run's seed can take it off again.
A seeded source is for tests and for experiments that have to be repeated exactly: it protects nobody, and a run
that uses it says so.

Floating-point numbers lie closer together near zero. What a sum of two of them can be depends on both, so the last bits
of a release tell which sums it cannot come from (Mironov, 2012). Therefore noise is added in float64, and the result is
rounded to a much coarser grid of equal steps, which the standard deviation of the noise alone decides, as in Google's
notes on secure noise generation. Rounding comes after the noise: it is post-processing of the Gaussian mechanism and
leaves the sensitivity as it is. A step holds 2^36 numbers of float64 near one standard deviation, so that its
probability is that of a real Gaussian to about one part in as many.

Two alternatives were not taken. The sensitivity of a sum that is rounded before the noise grows by the square root of
its length times the step. The discrete Gaussian (Canonne, Kamath and Steinke, 2020) is exact, and needs that rounding
and a rejection sampler of integers for every number.
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

Normal: TypeAlias = Callable[[int], np.ndarray]  # so many independent standard normal numbers, float64

GRID_BITS = 16  # float32 has 24: it holds a number of the grid exactly up to 128 standard deviations


def secure_uniform(count: int) -> np.ndarray:
    """Strictly between 0 and 1, with 53 bits each."""
    bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(11)
    return (bits + 0.5) * 2.0**-53


def secure_normal(count: int) -> np.ndarray:
    """By Box and Muller's transform."""
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
    """The values with noise, in float64, on the grid of the noise."""
    grid = grid_of(deviation)
    drawn = torch.from_numpy(deviation * normal(values.numel())).view(values.shape)
    on_grid = drawn.add_(values).div_(grid).round_().mul_(grid)  # but for rounding, exact: the grid is a power of two
    return on_grid.add_(0.0)  # a negative zero would tell on which side of zero it was
