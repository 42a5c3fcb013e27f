"""`nn.Sequential` for many clients at once: convolutions, layer norms, pools and linear layers.

Inputs are [C, n, ...]. Between layers images are [C, n, height, width, channels], the fastest layout for the library's
convolutions. A parameter with a leading client axis is separate for each client; without one it is shared by all
clients, and its gradient is the sum over them. A parameter expanded from one value counts as shared in the forward
pass, but gets a gradient per client in the backward pass, as clipping needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from homespun.core.errors import MethodError
from homespun.core.tree import Tree
from homespun.models.document import stacked_linear

IMAGE = 3  # axes of an image


class Geometry(NamedTuple):
    """Stride and padding of a convolution, size of the average pooling after it, and unit of the inputs (255 for bytes,
    which scales them to at most one).

    A convolution followed by average pooling is a convolution with a larger window and stride, whose weight is the mean
    of the shifted weights. It needs fewer products, and the values to average are never stored.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    pool: tuple[int, ...] = (1, 1)
    unit: float = 1.0

    @property
    def steps(self) -> tuple[int, int]:
        return self.stride[0] * self.pool[0], self.stride[1] * self.pool[1]

    def widened(self, weight: Tensor) -> Tensor:
        """The weight [..., kh, kw] extended to that of the combined convolution."""
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
        return wide / (prod(self.pool) * self.unit)

    def narrowed(self, gradient: Tensor, size: torch.Size) -> Tensor:
        """The gradient of the argument of `widened`, which has this size, from the gradient of its result."""
        height, width = size[-2:]
        shifted = [gradient[..., down : down + height, right : right + width] for down, right in self._shifts()]
        return torch.stack(shifted).sum(dim=0) / (prod(self.pool) * self.unit)

    def back(self, grad: Tensor, inputs: Tensor, wide: Tensor, *, of: Literal["inputs", "weight"]) -> Tensor:
        """The library's gradient of the combined convolution with a weight shared by all clients."""
        found = torch.ops.aten.convolution_backward(
            *(_for_library(grad), _for_library(inputs), wide, None),
            *(self.steps, self.padding, (1, 1), False, (0, 0), 1),
            (of == "inputs", of == "weight", False),
        )
        return _from_library(found[0], inputs.shape[:2]) if of == "inputs" else found[1]

    def _shifts(self) -> Iterator[tuple[int, int]]:
        rows, columns = (range(0, count * step, step) for count, step in zip(self.pool, self.stride, strict=True))
        return product(rows, columns)


def stacked_sequential(layers: nn.Sequential, parameters: Tree, inputs: Tensor, *, after: int = 0) -> Tensor:
    """Apply `layers`, except the first `after`, to every client's rows. `parameters` are named as in `layers`.

    Input and output images have their channels last.
    """
    for place, layer in list(enumerate(layers))[after:]:
        own = {name: parameters[f"{place}.{name}"] for name, _ in layer.named_parameters()}
        if isinstance(layer, nn.Conv2d):
            following = layers[place + 1] if place + 1 < len(layers) else None
            inputs = conv(inputs, own["weight"], own["bias"], geometry(layer, following))
        elif isinstance(layer, nn.AvgPool2d):
            if place == 0 or not isinstance(layers[place - 1], nn.Conv2d):
                raise MethodError("average pooling can be stacked only directly after a convolution")
        else:
            inputs = _LAYERS[type(layer)](layer, own, inputs)
    return inputs


def weights_are_shared(parameters: Tree, layers: nn.Sequential) -> bool:
    """Whether all clients have the same weights: no weight has a client axis, or all are expanded along it."""
    plain = {name: value.dim() for name, value in layers.named_parameters()}
    if all(value.dim() == plain[name] for name, value in parameters.items()):
        return True
    return all(
        value.dim() > plain[name] and (value.stride(0) == 0 or len(value) == 1) for name, value in parameters.items()
    )


def geometry(layer: nn.Module, following: nn.Module | None) -> Geometry:
    """The geometry of a convolution and of the average pooling after it, if there is one."""
    assert isinstance(layer, nn.Conv2d)
    plain = layer.dilation == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros" and layer.bias is not None
    if isinstance(layer.padding, str) or not plain:
        raise MethodError(f"{layer}: only plain convolutions with a bias can be stacked")
    if not isinstance(following, nn.AvgPool2d):
        return Geometry(layer.stride, layer.padding)
    size, stride = (
        value if isinstance(value, tuple) else (value, value) for value in (following.kernel_size, following.stride)
    )
    if size != stride or following.padding not in (0, (0, 0)) or following.ceil_mode or following.divisor_override:
        raise MethodError(f"{following}: only average pooling without overlap can be stacked")
    return Geometry(layer.stride, layer.padding, size)


def conv(inputs: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """[C, n, height, width, out]. The weight is shared by all clients, or separate for each: [C, out, in, kh, kw]."""
    outputs = _Conv.apply(inputs, weight, geometry)
    return outputs if bias is None else outputs + (bias if bias.dim() == 1 else bias[:, None, None, None])


class _Conv(torch.autograd.Function):
    """With a shared weight, one convolution processes the rows of all clients. With a single input channel the weight's
    gradient is a matrix product over windows, because the library would take 20 times as long."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        same = weight if weight.dim() == 4 else weight[0] if weight.stride(0) == 0 else None
        wide = geometry.widened(weight if same is None else same)
        windows = None
        if same is not None and (inputs.shape[-1] > 1 or not ctx.needs_input_grad[1]):
            images, wide = _for_library(inputs).to(wide.dtype), wide.contiguous(memory_format=torch.channels_last)
            outputs = functional.conv2d(images, wide, None, geometry.steps, geometry.padding)
            outputs = _from_library(outputs, inputs.shape[:2])
        else:
            windows, places = _windows(inputs, wide.shape[-2:], geometry)
            products = torch.matmul(windows, wide.movedim(-3, -1).flatten(-3).mT)  # [C, n * places, out]
            outputs = products.unflatten(1, (inputs.shape[1], *places))
        ctx.save_for_backward(inputs, wide, windows if ctx.needs_input_grad[1] else None)
        ctx.geometry, ctx.same, ctx.weight = geometry, same is not None, weight.shape
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, wide, windows = ctx.saved_tensors
        wants_inputs, wants_weight, _ = ctx.needs_input_grad
        is_shared = len(ctx.weight) == 4
        of_inputs = of_weight = None
        if wants_weight and is_shared and windows is None:
            of_weight = ctx.geometry.narrowed(ctx.geometry.back(grad, inputs, wide, of="weight"), ctx.weight)
        elif wants_weight:
            if windows is None:
                windows, _ = _windows(inputs, wide.shape[-2:], ctx.geometry)
            of_wide = torch.bmm(grad.flatten(1, 3).mT, windows)  # [C, out, kh * kw * in]
            of_wide = of_wide.sum(dim=0) if is_shared else of_wide
            of_wide = of_wide.unflatten(-1, (*wide.shape[-2:], -1)).movedim(-1, -3)
            of_weight = ctx.geometry.narrowed(of_wide, ctx.weight)
        if wants_inputs and ctx.same:
            of_inputs = ctx.geometry.back(grad, inputs, wide, of="inputs")
        elif wants_inputs:
            windows = wide.flatten(2).mT[:, None] @ grad.flatten(2, 3).mT  # [C, n, in * kh * kw, places]
            steps, padding = ctx.geometry.steps, ctx.geometry.padding
            size = inputs.shape[2:4]
            folded = functional.fold(windows.flatten(0, 1), size, wide.shape[-2:], padding=padding, stride=steps)
            of_inputs = _from_library(folded, inputs.shape[:2])
        return of_inputs, of_weight, None


def _for_library(images: Tensor) -> Tensor:
    """[C * n, channels, height, width], without copying."""
    return images.flatten(0, 1).movedim(-1, 1)


def _from_library(images: Tensor, clients: torch.Size) -> Tensor:
    return images.movedim(1, -1).unflatten(0, clients)


def _windows(inputs: Tensor, size: torch.Size, geometry: Geometry) -> tuple[Tensor, torch.Size]:
    """Every window of every row as floats [C, n * places, kh * kw * in], and the number of places.

    numpy copies windows three times as fast as torch.
    """
    (top, left), (down, right) = geometry.padding, geometry.steps
    around = functional.pad(inputs, (0, 0, left, left, top, top))
    if inputs.device.type != "cpu":
        seen = around.unfold(2, size[0], down).unfold(3, size[1], right)  # [C, n, height, width, in, kh, kw]
        numbers = seen.permute(0, 1, 2, 3, 5, 6, 4).to(around.dtype if around.is_floating_point() else torch.float32)
        return numbers.flatten(4).flatten(1, 3), seen.shape[2:4]
    padded = around.numpy()
    every = sliding_window_view(padded, size, axis=(2, 3))[:, :, ::down, ::right]  # [C, n, height, width, in, kh, kw]
    kind = padded.dtype if padded.dtype.kind == "f" else np.float32
    windows = torch.from_numpy(every.transpose(0, 1, 2, 3, 5, 6, 4).astype(kind, order="C"))
    return windows.flatten(4).flatten(1, 3), torch.Size(every.shape[2:4])


def _layer_norm(layer: nn.Module, own: Tree, inputs: Tensor) -> Tensor:
    assert isinstance(layer, nn.LayerNorm)
    weight, bias, over = own["weight"], own["bias"], len(layer.normalized_shape)
    if over == IMAGE:
        weight, bias = weight.movedim(-3, -1), bias.movedim(-3, -1)
    shape = inputs.shape[-over:]
    if weight.dim() == over:
        return functional.layer_norm(inputs, shape, weight, bias, layer.eps)
    return functional.layer_norm(inputs, shape, eps=layer.eps) * weight[:, None] + bias[:, None]


def _flatten(layer: nn.Module, own: Tree, inputs: Tensor) -> Tensor:
    return (inputs.movedim(-1, 2) if inputs.dim() == 2 + IMAGE else inputs).flatten(2)


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
