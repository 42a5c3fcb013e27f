"""Arithmetic on named tensors.

A tree is a plain `dict[str, Tensor]`. Two trees are combined only if their names and shapes agree: there is no
broadcasting, no tensor is skipped, and no argument is modified.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load as _load_safetensors
from safetensors.torch import save as _save_safetensors
from torch import Tensor

from homespun.core.errors import MessageError

Tree: TypeAlias = Mapping[str, Tensor]


def require_same_names(left: Tree, right: Tree) -> None:
    """Raise unless both trees have the same names and shapes."""
    missing, extra = sorted(left.keys() - right.keys()), sorted(right.keys() - left.keys())
    if missing or extra:
        raise MessageError(f"trees differ: missing {missing}, unexpected {extra}")
    for name in left:
        if left[name].shape != right[name].shape:
            raise MessageError(f"{name!r}: expected shape {tuple(left[name].shape)}, got {tuple(right[name].shape)}")


def require_like(expected: Tree, found: Tree) -> None:
    """Raise unless both trees have the same names, shapes and dtypes."""
    require_same_names(expected, found)
    for name, tensor in expected.items():
        if found[name].dtype != tensor.dtype:
            raise MessageError(f"{name!r}: expected {tensor.dtype}, got {found[name].dtype}")


def add(left: Tree, right: Tree) -> dict[str, Tensor]:
    require_same_names(left, right)
    return {name: left[name] + right[name] for name in left}


def zeros_like(tree: Tree) -> dict[str, Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in tree.items()}


def max_abs_difference(left: Tree, right: Tree) -> float:
    require_same_names(left, right)
    return max((float((left[name] - right[name]).abs().max()) for name in left if left[name].numel()), default=0.0)


def non_finite(tree: Tree) -> list[str]:
    """The sorted names of tensors with NaN or infinity."""
    return sorted(name for name, tensor in tree.items() if not _is_finite(tensor))


def _is_finite(tensor: Tensor) -> bool:
    if tensor.dtype not in (torch.float32, torch.float64) or not tensor.numel():
        return bool(torch.isfinite(tensor).all())
    # One pass without a temporary tensor, a tenth of the time. Both ends are NaN if one number is.
    return all(isfinite(float(end)) for end in torch.aminmax(tensor))


def to_bytes(tree: Tree) -> bytes:
    """Encode as safetensors: data without code, and the same bytes for the same tree."""
    return _save_safetensors({name: tree[name].detach().contiguous() for name in sorted(tree)})


def from_bytes(data: bytes) -> dict[str, Tensor]:
    try:
        return _load_safetensors(data)
    except SafetensorError as error:
        raise MessageError(f"not a tree of tensors: {error}") from None
    except (KeyError, ValueError, TypeError, RuntimeError, AssertionError) as error:
        # The header is valid, but torch does not support the dtype or shape; safetensors passes the error on.
        raise MessageError(f"not a tree of tensors: torch does not support one of them ({error!r})") from None


def byte_count(tree: Tree) -> int:
    return sum(tensor.nbytes for tensor in tree.values())
