"""Gaussian noise for releases.

It comes from the operating system's cryptographic source, so that nobody who knows a run's seed can take it off again.
A seeded source is for tests and for experiments that have to be repeated exactly: it protects nobody, and a run
that uses it says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from homespun.core import seeds

Normal: TypeAlias = Callable[[int], np.ndarray]  # so many independent standard normal numbers, float64


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


def noise_like(tensor: Tensor, normal: Normal, *, deviation: float) -> Tensor:
    drawn = torch.from_numpy(deviation * normal(tensor.numel()))
    return drawn.reshape(tensor.shape).to(tensor.dtype)
