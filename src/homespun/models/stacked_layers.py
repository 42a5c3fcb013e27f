"""`nn.Sequential` for many clients at once: convolutions, layer norms, pools and linear layers.

Inputs are [C, n, ...]. A parameter with a leading client axis is each client's own; without one it is the same for
everybody, and its gradient is the sum over all. A parameter that was expanded from one value is used as that one value
in the forward pass, where it is, and gets each client's gradient in the backward pass, where clipping wants them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from homespun.core.errors import MethodError
from homespun.core.tree import Tree
from homespun.models.document import stacked_linear


class Geometry(NamedTuple):
    """How a convolution's window moves, and over how many places their mean is taken afterwards.

    A mean over places of a convolution is a convolution with a larger window in larger steps, whose weight is the mean
    of the shifted weights. It has fewer products, and what would be averaged is never written down.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    pool: tuple[int, ...] = (1, 1)

    @property
    def steps(self) -> tuple[int, int]:
        return self.stride[0] * self.pool[0], self.stride[1] * self.pool[1]

    def widened(self, weight: Tensor) -> Tensor:
        """[..., kh, kw] as the weight of the one convolution."""
        height, width = weight.shape[-2:]
        wide = weight.new_zeros(
            *weight.shape[:-2],
            *(
                size + (count - 1) * step
                for size, count, step in zip((height, width), self.pool, self.stride, strict=True)
            ),
        )
        for down, right in self._shifts():
            wide[..., down : down + height, right : right + width] += weight
        return wide / prod(self.pool)

    def narrowed(self, gradient: Tensor, size: torch.Size) -> Tensor:
        """The gradient of `widened`'s argument, of this size, from that of its result."""
        height, width = size[-2:]
        shifted = [gradient[..., down : down + height, right : right + width] for down, right in self._shifts()]
        return torch.stack(shifted).sum(dim=0) / prod(self.pool)

    def _shifts(self) -> Iterator[tuple[int, int]]:
        rows, columns = (range(0, count * step, step) for count, step in zip(self.pool, self.stride, strict=True))
        return product(rows, columns)


def stacked_sequential(layers: nn.Sequential, parameters: Tree, inputs: Tensor, *, after: int = 0) -> Tensor:
    """What `layers`, but for the first few, gives for every client's rows; `parameters` are named as in `layers`."""
    for place, layer in list(enumerate(layers))[after:]:
        own = {name: parameters[f"{place}.{name}"] for name, _ in layer.named_parameters()}
        if isinstance(layer, nn.Conv2d):
            following = layers[place + 1] if place + 1 < len(layers) else None
            inputs = conv(inputs, own["weight"], own["bias"], geometry(layer, following))
        elif isinstance(layer, nn.AvgPool2d):
            if place == 0 or not isinstance(layers[place - 1], nn.Conv2d):
                raise MethodError("a mean over places is read together with the convolution before it; there is none")
        else:
            inputs = _LAYERS[type(layer)](layer, own, inputs)
    return inputs


def geometry(layer: nn.Conv2d, following: nn.Module | None) -> Geometry:
    """Of a convolution and of the mean that is taken of what it gives, if that is what follows."""
    plain = layer.dilation == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros" and layer.bias is not None
    if isinstance(layer.padding, str) or not plain:
        raise MethodError(f"{layer}: only plain convolutions with a bias can be stacked")
    if not isinstance(following, nn.AvgPool2d):
        return Geometry(layer.stride, layer.padding)
    size, stride = (
        value if isinstance(value, tuple) else (value, value) for value in (following.kernel_size, following.stride)
    )
    if size != stride or following.padding not in (0, (0, 0)) or following.ceil_mode or following.divisor_override:
        raise MethodError(f"{following}: only a mean over places that do not overlap can be stacked")
    return Geometry(layer.stride, layer.padding, size)


def conv(inputs: Tensor, weight: Tensor, bias: Tensor, geometry: Geometry) -> Tensor:
    """[C, n, out, height, width]; the weight is everybody's or each client's own, [C, out, in, kh, kw]."""
    outputs = _Conv.apply(inputs, weight, geometry)
    return outputs + (bias[:, None, None] if bias.dim() == 1 else bias[:, None, :, None, None])


class _Conv(torch.autograd.Function):
    """A weight that is the same for all makes one product of everybody's rows. With a single input channel that is a
    product of windows: the library's convolution takes 20 times as long for the gradient of such a weight."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        same = weight if weight.dim() == 4 else weight[0] if weight.stride(0) == 0 else None
        wide = geometry.widened(weight if same is None else same)
        windows = None
        if same is not None and inputs.shape[2] > 1:
            outputs = functional.conv2d(inputs.flatten(0, 1), wide, None, geometry.steps, geometry.padding)
            outputs = outputs.unflatten(0, inputs.shape[:2])
        else:
            windows, places = _windows(inputs, wide.shape[-2:], geometry)
            products = torch.matmul(windows, wide.flatten(-3).mT)  # [C, n * places, out]
            outputs = products.unflatten(1, (inputs.shape[1], *places)).permute(0, 1, 4, 2, 3).contiguous()
        ctx.save_for_backward(inputs, wide, windows if ctx.needs_input_grad[1] else None)
        ctx.geometry, ctx.same, ctx.weight = geometry, same is not None, weight.shape
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, wide, windows = ctx.saved_tensors
        wants_inputs, wants_weight, _ = ctx.needs_input_grad
        steps, padding = ctx.geometry.steps, ctx.geometry.padding
        everybodys = len(ctx.weight) == 4
        of_inputs = of_weight = None
        if wants_weight and everybodys and windows is None:
            of_wide = conv2d_weight(inputs.flatten(0, 1), wide.shape, grad.flatten(0, 1), steps, padding)
            of_weight = ctx.geometry.narrowed(of_wide, ctx.weight)
        elif wants_weight:
            if windows is None:
                windows, _ = _windows(inputs, wide.shape[-2:], ctx.geometry)
            rows = grad.transpose(1, 2).flatten(2)  # [C, out, n * places]
            of_wide = torch.bmm(rows, windows)
            of_wide = of_wide.sum(dim=0) if everybodys else of_wide
            size = ctx.weight[:-2] + wide.shape[-2:]
            of_weight = ctx.geometry.narrowed(of_wide.view(size), ctx.weight)
        if wants_inputs:
            each = wide.flatten(-3).mT if ctx.same else wide.flatten(2).mT[:, None]
            windows = (each @ grad.flatten(3)).flatten(0, 1)  # [C * n, in * kh * kw, places]
            folded = functional.fold(windows, inputs.shape[3:], wide.shape[-2:], padding=padding, stride=steps)
            of_inputs = folded.view(inputs.shape)
        return of_inputs, of_weight, None


def _windows(inputs: Tensor, size: torch.Size, geometry: Geometry) -> tuple[Tensor, torch.Size]:
    """Every window of every row, [C, n * places, in * kh * kw], and how many places there are; bytes become numbers. By
    numpy, which copies windows three times as fast."""
    (top, left), (down, right) = geometry.padding, geometry.steps
    padded = functional.pad(inputs, (left, left, top, top)).numpy()
    every = sliding_window_view(padded, size, axis=(3, 4))[
        :, :, :, ::down, ::right
    ]  # [C, n, in, height, width, kh, kw]
    kind = padded.dtype if padded.dtype.kind == "f" else np.float32
    windows = torch.from_numpy(every.transpose(0, 1, 3, 4, 2, 5, 6).astype(kind, order="C"))
    return windows.flatten(4).flatten(1, 3), torch.Size(every.shape[3:5])


def _layer_norm(layer: nn.Module, own: Tree, inputs: Tensor) -> Tensor:
    assert isinstance(layer, nn.LayerNorm)
    weight, bias = own["weight"], own["bias"]
    if weight.dim() == len(layer.normalized_shape):
        return functional.layer_norm(inputs, layer.normalized_shape, weight, bias, layer.eps)
    return functional.layer_norm(inputs, layer.normalized_shape, eps=layer.eps) * weight[:, None] + bias[:, None]


def _flatten(layer: nn.Module, own: Tree, inputs: Tensor) -> Tensor:
    return inputs.flatten(2)


def _linear(layer: nn.Module, own: Tree, inputs: Tensor) -> Tensor:
    return linear(inputs, own["weight"], own["bias"])


def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if weight.dim() == 2:
        return functional.linear(inputs, weight, bias)
    return stacked_linear(inputs, weight, bias=bias)


_LAYERS = {
    nn.LayerNorm: _layer_norm,
    nn.Flatten: _flatten,
    nn.Linear: _linear,
}
