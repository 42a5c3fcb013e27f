"""`nn.Sequential` for many clients at once: convolutions, layer norms, pools and linear layers.

Inputs are [C, n, ...]. A parameter with a leading client axis is each client's own; without one it is the same for
everybody, and its gradient is the sum over all. A parameter that was expanded from one value is used as that one value
in the forward pass, where it is, and gets each client's gradient in the backward pass, where clipping wants them apart.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.grad import conv2d_input

from homespun.core.tree import Tree
from homespun.models.document import stacked_linear


class Geometry(NamedTuple):
    """How a convolution's window moves."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]


def stacked_sequential(layers: nn.Sequential, parameters: Tree, inputs: Tensor, *, after: int = 0) -> Tensor:
    """What `layers`, but for the first few, gives for every client's rows; `parameters` are named as in `layers`."""
    for place, layer in list(enumerate(layers))[after:]:
        own = {name: parameters[f"{place}.{name}"] for name, _ in layer.named_parameters()}
        inputs = _LAYERS[type(layer)](layer, own, inputs)
    return inputs


def _conv(layer: nn.Module, own: Tree, inputs: Tensor) -> Tensor:
    assert isinstance(layer, nn.Conv2d) and not isinstance(layer.padding, str)
    return conv(inputs, own["weight"], own["bias"], Geometry(layer.stride, layer.padding))


def conv(inputs: Tensor, weight: Tensor, bias: Tensor, geometry: Geometry) -> Tensor:
    if weight.dim() == 4:
        found = functional.conv2d(inputs.flatten(0, 1), weight, bias, *geometry)
        return found.unflatten(0, inputs.shape[:2])
    return _OwnConv.apply(inputs, weight, geometry) + bias[:, None, :, None, None]


class _OwnConv(torch.autograd.Function):
    """Each client's rows with each client's weight [C, out, in, kh, kw]."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.geometry = geometry
        if weight.stride(0) == 0:
            return functional.conv2d(inputs.flatten(0, 1), weight[0], None, *geometry).unflatten(0, inputs.shape[:2])
        windows, (height, width) = _windows(inputs, weight.shape[3:], geometry)
        outputs = torch.bmm(windows, weight.flatten(2).mT)  # [C, n * places, out]
        return outputs.unflatten(1, (inputs.shape[1], height, width)).permute(0, 1, 4, 2, 3).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        wants_inputs, wants_weight, _ = ctx.needs_input_grad
        of_inputs = of_weight = None
        if wants_weight:
            windows, _ = _windows(inputs, weight.shape[3:], ctx.geometry)
            rows = grad.transpose(1, 2).flatten(2)  # [C, out, n * places]
            of_weight = torch.bmm(rows, windows).view(weight.shape)
        if wants_inputs and weight.stride(0) == 0:
            size = (grad.shape[0] * grad.shape[1], *inputs.shape[2:])
            of_inputs = conv2d_input(size, weight[0], grad.flatten(0, 1), *ctx.geometry).view(inputs.shape)
        elif wants_inputs:
            rows = grad.permute(0, 1, 3, 4, 2).flatten(1, 3)
            windows = torch.bmm(rows, weight.flatten(2)).unflatten(1, (inputs.shape[1], -1)).flatten(0, 1)
            folded = functional.fold(
                windows.mT, inputs.shape[3:], weight.shape[3:], padding=ctx.geometry.padding, stride=ctx.geometry.stride
            )
            of_inputs = folded.view(inputs.shape)
        return of_inputs, of_weight, None


def _windows(inputs: Tensor, size: torch.Size, geometry: Geometry) -> tuple[Tensor, tuple[int, int]]:
    """Every window of every row, [C, n * places, in * kh * kw], and how many places there are."""
    (top, left), (down, right) = geometry.padding, geometry.stride
    padded = functional.pad(inputs, (left, left, top, top))
    windows = padded.unfold(3, size[0], down).unfold(4, size[1], right)  # [C, n, in, height, width, kh, kw]
    places = windows.shape[3], windows.shape[4]
    return windows.permute(0, 1, 3, 4, 2, 5, 6).flatten(4).flatten(1, 3), places


def _layer_norm(layer: nn.Module, own: Tree, inputs: Tensor) -> Tensor:
    assert isinstance(layer, nn.LayerNorm)
    weight, bias = own["weight"], own["bias"]
    if weight.dim() == len(layer.normalized_shape):
        return functional.layer_norm(inputs, layer.normalized_shape, weight, bias, layer.eps)
    return functional.layer_norm(inputs, layer.normalized_shape, eps=layer.eps) * weight[:, None] + bias[:, None]


def _pool(layer: nn.Module, own: Tree, inputs: Tensor) -> Tensor:
    return layer(inputs.flatten(0, 1)).unflatten(0, inputs.shape[:2])


def _flatten(layer: nn.Module, own: Tree, inputs: Tensor) -> Tensor:
    return inputs.flatten(2)


def _linear(layer: nn.Module, own: Tree, inputs: Tensor) -> Tensor:
    return linear(inputs, own["weight"], own["bias"])


def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if weight.dim() == 2:
        return functional.linear(inputs, weight, bias)
    return stacked_linear(inputs, weight, bias=bias)


_LAYERS = {
    nn.Conv2d: _conv,
    nn.LayerNorm: _layer_norm,
    nn.AvgPool2d: _pool,
    nn.Flatten: _flatten,
    nn.Linear: _linear,
}
