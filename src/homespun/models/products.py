"""Products of float32 matrices on the CPU, by the faster of the two libraries in PyTorch.

`torch.mm` calls MKL, which on AMD's CPUs with AVX-512 uses vectors of half their width. oneDNN uses all of it: it
computes large products about twice as fast, with the same precision in another order of additions. Which one computes a
product depends on the CPU and on the product's shape only, so the same machine gives the same bits.

For hand-written gradients: these functions do not record their own.
"""

from __future__ import annotations

import os
from functools import lru_cache

import torch
from torch import Tensor

from homespun.system.machine import cpu_vendor

# PyTorch and oneDNN each keep the kernels of the last 1,024 shapes with their memory. Batches of texts have a new
# shape in every step, so that this grew to gigabytes; making a kernel again takes no noticeable time.
for _name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(_name, "32")

LEAST_ROWS, LEAST_PRODUCTS = 16, 1 << 21  # below these, a call of oneDNN costs more than it saves


def mm(left: Tensor, right: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The product [m, n] of [m, k] and [k, n]."""
    if not (_is_large(left.shape, right.shape) and _suits(left, right)):
        return torch.mm(left, right, out=out)
    found = _linear(left, right.mT, None)
    return found if out is None else out.copy_(found)


def addmm(bias: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The product plus a bias [n]."""
    if _is_large(left.shape, right.shape) and _suits(left, right):
        return _linear(left, right.mT, bias)
    return torch.addmm(bias, left, right)


def bmm(left: Tensor, right: Tensor) -> Tensor:
    """The products [b, m, n] of [b, m, k] and [b, k, n]."""
    if not (_is_large(left.shape[1:], right.shape[1:]) and _suits(left, right)):
        return torch.bmm(left, right)
    found = left.new_empty(len(left), left.shape[1], right.shape[2])
    for one, other, place in zip(left, right.mT, found, strict=True):
        place.copy_(_linear(one, other, None))
    return found


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(_dense(inputs), _dense(weight), bias, "none", [], "")
    return found


def _dense(matrix: Tensor) -> Tensor:
    """The matrix without gaps in memory: for a part of a wider one, oneDNN has no fast kernel."""
    return matrix if matrix.is_contiguous() or matrix.mT.is_contiguous() else matrix.contiguous()


def _is_large(left: torch.Size, right: torch.Size) -> bool:
    return left[0] >= LEAST_ROWS and left[0] * right[0] * right[1] >= LEAST_PRODUCTS


def _suits(*factors: Tensor) -> bool:
    return prefers_onednn() and all(one.dtype == torch.float32 and one.device.type == "cpu" for one in factors)


@lru_cache(maxsize=1)
def prefers_onednn() -> bool:
    """Whether oneDNN multiplies faster than MKL on this CPU."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return wide and torch.backends.mkldnn.is_available() and cpu_vendor() == "AuthenticAMD"
