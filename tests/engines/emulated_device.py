"""Emulates a second device on a machine that has only a CPU.

Its tensors hold real numbers in memory, but report the device `meta`. Every operator is intercepted: one with tensors
of both devices raises, as it would on a GPU, and results are on the right device. Whole rounds can run, with sizes and
branches that depend on data, and their results can be compared with those of the CPU.

It is stricter than a GPU: an index on the CPU raises too. Scalars on the CPU are allowed.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from homespun.models import digit_encoder, speech_encoder

DEVICE = "meta"
aten = torch.ops.aten
MOVES = {aten._to_copy.default, aten.copy_.default}
# These require lengths or batch sizes on the CPU.
PACKING = {aten._pack_padded_sequence.default, aten._pack_padded_sequence_backward.default}


class TwoDevicesError(RuntimeError):
    pass


class EmulatedTensor(Tensor):
    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> EmulatedTensor:
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.inner = inner
        return made

    def __repr__(self) -> str:
        return f"EmulatedTensor({self.inner})"

    def tolist(self) -> Any:
        return self.inner.tolist()  # not supported by torch for subclasses

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


class _Watch(TorchDispatchMode):
    """Intercepts operators without a tensor of the emulated device too: they may create one there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    emulated = [one for one in tensors if isinstance(one, EmulatedTensor)]
    on_cpu = [one for one in tensors if not isinstance(one, EmulatedTensor) and one.dim() > 0]
    if emulated and on_cpu and func not in MOVES | PACKING:
        shapes = [[tuple(one.shape) for one in some] for some in (emulated, on_cpu)]
        raise TwoDevicesError(f"{func}: shapes {shapes[0]} on {DEVICE}, {shapes[1]} on the CPU")
    on_device = bool(emulated)
    if func is aten.copy_.default:
        on_device = isinstance(tensors[0], EmulatedTensor)
    elif kwargs.get("device") is not None:
        on_device = torch.device(kwargs["device"]).type == DEVICE
        kwargs = {**kwargs, "device": torch.device("cpu")}
    known: dict[int, EmulatedTensor] = {}

    def inner(one: Tensor) -> Tensor:
        if isinstance(one, EmulatedTensor):
            known[id(one.inner)] = one
            return one.inner
        return one

    args, kwargs = tree_map_only(Tensor, inner, (args, kwargs))
    found = func(*args, **kwargs)
    if not on_device:
        return found
    if func is aten._pack_padded_sequence.default:
        return EmulatedTensor(found[0]), found[1]
    # a tensor that is changed in place stays the same object
    return tree_map_only(Tensor, lambda one: known[id(one)] if id(one) in known else EmulatedTensor(one), found)


@contextmanager
def emulated_device():
    """Within this context, `device="meta"` is the emulated device."""
    made = torch.tensor

    def tensor(*args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        return made(*args, **kwargs).to(device or "cpu")  # torch would not read values for `meta`

    def new_tensor(like: Tensor, data: Any, **kwargs: Any) -> Tensor:
        return made(data, dtype=kwargs.get("dtype", like.dtype)).to(like.device)

    clear_index_caches()
    with patch.object(torch, "tensor", tensor), patch.object(Tensor, "new_tensor", new_tensor), _Watch():
        yield
    clear_index_caches()


def clear_index_caches() -> None:
    """Clear indices cached by device, because emulated tensors are valid only within the context."""
    for cached in (digit_encoder._pixel_of_window, digit_encoder._pixels_of_values, speech_encoder._on_diagonal):
        cached.cache_clear()
