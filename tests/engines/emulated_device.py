"""A device that is not the CPU, on a machine that has none.

Its tensors hold real numbers in memory, but say that their device is `meta`. Every operator is looked at: one that is
given tensors of both devices raises, as it would on a GPU, and whatever it makes is on the device that it belongs to.
So whole rounds can run, with sizes and branches that depend on data, and the numbers can be compared with the CPU's.

It is stricter than a GPU where that is cheap: also an index on the CPU raises. Scalars on the CPU are allowed.
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
# By definition these take the lengths, or the sizes of batches, on the CPU.
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
        return f"Elsewhere({self.inner})"

    def tolist(self) -> Any:
        return self.inner.tolist()  # which torch has not for subclasses

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class _Watch(TorchDispatchMode):
    """Sees also operators that are given no tensor, or none from elsewhere: they may make one there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    there = [one for one in tensors if isinstance(one, EmulatedTensor)]
    here = [one for one in tensors if not isinstance(one, EmulatedTensor) and one.dim() > 0]
    if there and here and func not in MOVES | PACKING:
        shapes = [[tuple(one.shape) for one in some] for some in (there, here)]
        raise TwoDevicesError(f"{func}: shapes {shapes[0]} on {DEVICE}, {shapes[1]} on the CPU")
    goes = bool(there)
    if func is aten.copy_.default:
        goes = isinstance(tensors[0], EmulatedTensor)
    elif kwargs.get("device") is not None:
        goes = torch.device(kwargs["device"]).type == DEVICE
        kwargs = {**kwargs, "device": torch.device("cpu")}
    known: dict[int, EmulatedTensor] = {}

    def inner(one: Tensor) -> Tensor:
        if isinstance(one, EmulatedTensor):
            known[id(one.inner)] = one
            return one.inner
        return one

    args, kwargs = tree_map_only(Tensor, inner, (args, kwargs))
    found = func(*args, **kwargs)
    if not goes:
        return found
    if func is aten._pack_padded_sequence.default:
        return EmulatedTensor(found[0]), found[1]
    # what is changed in place stays the same object
    return tree_map_only(Tensor, lambda one: known[id(one)] if id(one) in known else EmulatedTensor(one), found)


@contextmanager
def emulated_device():
    """In here `device="meta"` is the device described above."""
    made = torch.tensor

    def tensor(*args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        return made(*args, **kwargs).to(device or "cpu")  # for `meta` torch would not read the values

    def new_tensor(like: Tensor, data: Any, **kwargs: Any) -> Tensor:
        return made(data, dtype=kwargs.get("dtype", like.dtype)).to(like.device)

    forget_indices()
    with patch.object(torch, "tensor", tensor), patch.object(Tensor, "new_tensor", new_tensor), _Watch():
        yield
    forget_indices()


def forget_indices() -> None:
    """Which are kept by device: those that were made here are of use only here."""
    for kept in (digit_encoder._pixel_of_window, digit_encoder._pixels_of_values, speech_encoder._on_diagonal):
        kept.cache_clear()
