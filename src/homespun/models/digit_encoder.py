"""A fused kernel for FedEmbed's digit encoder, for many clients that have the same weights.

The encoder has no activation functions: only the layer norms are not linear, and a layer norm is linear except for two
numbers per row, the mean and the scale. So the first convolution, the affine part of the first norm and the second
convolution are one linear map, from 7 x 7 pixels to 32 channels at each of 7 x 7 places. Neither the 14 x 14 values
between them nor their gradients are stored:

    x = first(pixels) + shift                     16 channels of 14 x 14; the shift of a client is from diag(e) and bias
    z = scale (folded(pixels) + second(gain shift) - mean second(gain)) + second(offset)    32 channels of 7 x 7
    mean  = sum x / 3136                          linear in the pixels
    scale = 1 / sqrt(sum x^2 / 3136 - mean^2 + eps)    a quadratic form of the pixels

The affine part of the second norm is folded into the third convolution, which covers its whole input and so is a
matrix. The backward pass is fused in the same way: one product of the gradient of z with the pixels gives the gradients
of both layers' weights, and the gradient of a client's shift needs only sums over its rows. For measurements see
docs/decisions/0006-preferences.md.

If weights are one value expanded to [C, ...], each client gets its own gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from homespun.core.tree import Tree

SIDE, PADDED, WINDOW = 28, 31, 7  # side of the image, of the image padded by three, of the window of one place
PLACES, CHANNELS, FEATURES = 49, 32, 64
VALUES, MIDDLE = 16 * 14 * 14, PLACES * CHANNELS  # inputs of the first and of the second norm
EPS = 1e-5

# Order of a window's pixels. First come the inputs of the 2 x 2 values of the first convolution that belong to this
# window. Every value belongs to exactly one window, so sums of squares are sums over windows.
OWN = 25
ORDER = sorted(range(WINDOW**2), key=lambda at: min(divmod(at, WINDOW)) < 2)


def encode_digits(encoder: Tree, image: Tensor, *, embedding: Tensor | None, for_common: bool) -> tuple[Tensor, Tensor]:
    """Two copies of the features [C, n, 64] of images [C, n, 28, 28].

    With `for_common` the second copy passes gradients to the embedding but not to the encoder's weights.
    """
    fixed = {name: value.detach() for name, value in encoder.items()}
    windows = _Fold.apply(*(encoder[name] for name in ("0.weight", "1.weight", "1.bias", "2.weight", "2.bias")))
    terms = client_terms(encoder, embedding, len(image))
    terms_for_common = client_terms(fixed, embedding, len(image)) if for_common else (None,) * len(terms)
    last = [encoder[name] for name in ("4.weight", "4.bias", "3.weight", "3.bias")]
    found = _Encode.apply(image, windows, *square_sums(encoder["0.weight"]), *last, *terms, *terms_for_common)
    if not for_common:
        features = _last_norm(encoder, found)
        return features, features
    return _last_norm(encoder, found[0]), _last_norm(fixed, found[1])


class ClientTerms(NamedTuple):
    """The terms that each client's shift contributes."""

    middle: Tensor  # [C, 49 * 32]: to z, before scaling
    with_pixels: Tensor  # [C, 961]: half of the cross terms of the sum of squares, by pixel
    total: Tensor  # [C]: to the sum
    squares: Tensor  # [C]: to the sum of squares


class _Fold(torch.autograd.Function):
    """The first two convolutions and the norm between them as one linear map per window: [49 places, 49 + 2, 32].

    Its inputs are the scaled pixels, scale times mean, and 1. A place (q) of the second convolution sees nine values
    (t) of the first, and each of them sees nine pixels (k).
    """

    @staticmethod
    def forward(ctx: Any, first: Tensor, gain: Tensor, offset: Tensor, second: Tensor, bias: Tensor) -> Tensor:
        ctx.apart, ctx.channels, clients = first.dim() == 5, first.shape[-3], len(first)
        if ctx.apart:
            first, gain, offset, second, bias = (value[0] for value in (first, gain, offset, second, bias))
        of_pixel = first[:, 0].flatten(1)  # [o, k]
        near, near_offset = (
            _seen_by_second(value).view(16, 9, PLACES).transpose(0, 1).contiguous() for value in (gain, offset)
        )  # [t, o, q]
        weight = second.flatten(2).permute(2, 1, 0).contiguous()  # [t, o, c]
        through = (near[..., None] * of_pixel[:, None]).flatten(2)  # [t, o, q k]
        seen = torch.bmm(through.mT, weight).view(9, PLACES, 9, CHANNELS)
        windows = seen.new_zeros(PLACES, WINDOW**2 + 2, CHANNELS)
        for value, pixels in zip(seen, _pixels_of_values(seen.device), strict=True):
            windows.index_add_(1, pixels, value)
        windows[:, -2] = torch.mm(near.flatten(0, 1).mT, weight.flatten(0, 1)).neg_()
        windows[:, -1] = torch.addmm(bias, near_offset.flatten(0, 1).mT, weight.flatten(0, 1))
        ctx.save_for_backward(of_pixel, near, near_offset, weight, through)
        return windows.expand(clients, *windows.shape) if ctx.apart else windows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        of_pixel, near, near_offset, weight, through = ctx.saved_tensors
        grad = grad if ctx.apart else grad[None]
        clients = len(grad)
        seen = grad.new_empty(9, clients, PLACES, 9, CHANNELS)  # [t, C, q, k, c]
        for value, pixels in zip(seen, _pixels_of_values(seen.device), strict=True):
            torch.index_select(grad, 2, pixels, out=value)
        minus_gain, constant = -grad[:, :, -2], grad[:, :, -1]  # [C, q, c]
        by_channel = weight.flatten(0, 1)
        of_weight = torch.matmul(through[:, None], seen.flatten(2, 3)).transpose(0, 1)  # [C, t, o, c]
        steady = near.flatten(0, 1) @ minus_gain + near_offset.flatten(0, 1) @ constant
        of_weight = of_weight + steady.view(of_weight.shape)
        of_through = torch.bmm(seen.view(9, -1, CHANNELS), weight.mT).view(9, clients, PLACES, 9, 16)  # [t, C, q, k, o]
        of_near = (of_through * of_pixel.mT).sum(dim=3).permute(1, 0, 3, 2)  # [C, t, o, q]
        of_near = of_near + (by_channel @ minus_gain.mT).view(of_near.shape)
        of_offset = (by_channel @ constant.mT).view(of_near.shape)
        of_first = grad.new_zeros(clients, 16, ctx.channels, 9)  # without the embedding's channel, if there is one
        of_first[:, :, 0] = (of_through * near.mT[:, None, :, None]).sum(dim=(0, 2)).mT
        found = (
            of_first.unflatten(3, (3, 3)),
            *(_seen_by_second_backward(value.transpose(1, 2)) for value in (of_near, of_offset)),
            of_weight.permute(0, 3, 2, 1).unflatten(3, (3, 3)),
            constant.sum(dim=1),
        )
        return found if ctx.apart else tuple(value[0] for value in found)


def square_sums(first: Tensor) -> tuple[Tensor, Tensor]:
    """The quadratic form of a window's own pixels [..., 25, 25], and the contribution of each pixel to the sum
    [..., 961]."""
    of_pixel = first.select(-3, 0)
    spread = [functional.pad(of_pixel, (right, 2 - right, down, 2 - down)) for down in (0, 2) for right in (0, 2)]
    values = torch.cat(spread, dim=-3).flatten(-2)
    sums = of_pixel.sum(dim=-3).flatten(-2)[..., None]
    return values.mT @ values, _to_pixels(sums.expand(*sums.shape[:-1], 196))


def _seen_by_second(values: Tensor) -> Tensor:
    """The inputs of the second convolution's windows: [..., 16, 14, 14] -> [..., 16 * 9, 49]."""
    return functional.unfold(values, (3, 3), padding=1, stride=2)


def _seen_by_second_backward(seen: Tensor) -> Tensor:
    """[C, 16, 9, 49] -> [C, 16, 14, 14]."""
    clients = len(seen)
    together = functional.fold(seen.reshape(1, clients * 16 * 9, PLACES), (14, 14), (3, 3), padding=1, stride=2)
    return together.view(clients, 16, 14, 14)


def _to_pixels(seen: Tensor) -> Tensor:
    """The transpose of the first convolution: [..., 9, 196] window inputs, summed by pixel of the padded image."""
    together = seen.reshape(1, -1, 196)  # fold is fast over channels, but processes batch entries one by one
    by_pixel = functional.fold(together, (SIDE, SIDE), (3, 3), padding=1, stride=2)
    return functional.pad(by_pixel, (3, 0, 3, 0)).view(*seen.shape[:-2], -1)


def client_terms(encoder: Tree, embedding: Tensor | None, clients: int) -> ClientTerms:
    weight, gain, second = encoder["0.weight"], encoder["1.weight"], encoder["2.weight"]
    shift = encoder["0.bias"].expand(clients, -1)[..., None]  # [C, 16, 1]
    channel = weight.dim() - 3
    if embedding is None:
        shift = shift.expand(-1, -1, 196)
    else:
        seen = functional.unfold(diagonal(embedding)[:, None], (3, 3), padding=1, stride=2)  # [C, 9, 196]
        shift = shift + weight.select(channel, 1).flatten(-2) @ seen
    gained = shift.unflatten(2, (14, 14)) * gain
    middle = second.flatten(-3) @ _seen_by_second(gained)  # [C, 32, 49]
    return ClientTerms(
        middle.mT.flatten(1),
        _to_pixels(weight.select(channel, 0).flatten(-2).mT @ shift),
        shift.sum(dim=(1, 2)),
        shift.square().sum(dim=(1, 2)),
    )


def diagonal(embedding: Tensor, size: Sequence[int] = (SIDE, SIDE)) -> Tensor:
    """An image of the input's size with the embedding on its diagonal: [..., d] -> [..., height, width]."""
    square = torch.diag_embed(embedding)
    height, width = (side - embedding.shape[-1] for side in size)
    return functional.pad(square, (0, width, 0, height))


def _last_norm(encoder: Tree, found: Tensor) -> Tensor:
    weight, bias = (encoder[f"5.{name}"] for name in ("weight", "bias"))
    if weight.dim() == 3:
        return functional.layer_norm(found, [FEATURES], weight.flatten(), bias.flatten(), EPS)
    return functional.layer_norm(found, [FEATURES], eps=EPS) * weight.flatten(1)[:, None] + bias.flatten(1)[:, None]


class _Encode(torch.autograd.Function):
    """From images to the input of the last norm, and a second copy of it for the common head."""

    @staticmethod
    def forward(
        ctx: Any,
        image: Tensor,
        windows: Tensor,
        squares: Tensor,
        sums: Tensor,
        third: Tensor,
        third_bias: Tensor,
        gain: Tensor,
        offset: Tensor,
        *all_terms: Tensor | None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        ctx.apart = third.dim() == 5
        if ctx.apart:
            windows, squares, sums, third, third_bias, gain, offset = (
                value[0] for value in (windows, squares, sums, third, third_bias, gain, offset)
            )
        terms = ClientTerms(*all_terms[:4])  # type: ignore[arg-type]
        clients, count = image.shape[:2]
        rows = clients * count
        pixels = third.new_zeros(PADDED, PADDED, rows)
        pixels[3:, 3:] = image.flatten(0, 1).permute(1, 2, 0).contiguous()  # transposed as bytes, which is faster
        pixels = pixels.view(-1, rows).mul_(1 / 255)
        seen = pixels.new_empty(WINDOW**2 + 2, PLACES, rows)
        torch.index_select(pixels, 0, _pixel_of_window(pixels.device), out=seen[: WINDOW**2].view(-1, rows))
        own = seen[:OWN].view(OWN, -1)
        quadratic = (squares @ own).mul_(own).view(-1, rows).sum(dim=0).view(clients, count)
        crossed = (pixels.view(-1, clients, count) * terms.with_pixels.mT[..., None]).sum(dim=0)
        mean = ((sums @ pixels).view(clients, count) + terms.total[:, None]) / VALUES
        variance = (quadratic + 2 * crossed + terms.squares[:, None]) / VALUES - mean.square()
        scale = (variance.clamp(min=0) + EPS).rsqrt()  # rounding may make a zero difference negative
        seen[: WINDOW**2].mul_(scale.view(-1))
        seen[-2], seen[-1] = (scale * mean).view(-1), 1
        folded = torch.bmm(seen.permute(1, 2, 0), windows)  # [49, rows, 32]
        middle = pixels.new_empty(clients, count, PLACES, CHANNELS)
        torch.addcmul(
            folded.permute(1, 0, 2).unflatten(0, (clients, count)),
            scale[..., None, None],
            terms.middle.view(clients, 1, PLACES, CHANNELS),
            out=middle,
        )
        ones, zeros = pixels.new_ones(MIDDLE), pixels.new_zeros(MIDDLE)  # passing None takes twice as long
        normal, _, middle_scale = torch.native_layer_norm(middle.view(rows, MIDDLE), [MIDDLE], ones, zeros, EPS)
        by_place, gain, offset = _by_place(third), _by_place(gain[None])[0], _by_place(offset[None])[0]
        constants = windows[:, -2:].transpose(0, 1).flatten(1)
        gained = by_place * gain
        gained -= gained.mean(dim=1, keepdim=True)  # `normal` has mean zero, so its gradient must too
        products = normal @ torch.cat([gained, constants]).mT
        found = products[:, :FEATURES] + (by_place @ offset + third_bias)
        found = found.view(clients, count, FEATURES)
        ctx.save_for_backward(
            *_Saved(
                pixels, seen, scale, mean, normal, middle_scale, gained, products, constants, by_place, gain, offset
            )
        )
        return (found, found.clone()) if len(all_terms) > 4 and all_terms[4] is not None else found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = _Saved(*ctx.saved_tensors)
        wants_weights, wants_terms = any(ctx.needs_input_grad[1:8]), any(ctx.needs_input_grad[8:])
        of_weights: tuple[Tensor | None, ...] = (None,) * 7
        of_terms: list[Tensor | None] = []
        for path, grad in enumerate(grads):
            arrived = _arrived(saved, grad.reshape(-1, FEATURES))
            of_terms += _client_gradients(saved, arrived) if wants_terms else [None] * 4
            if path == 0 and wants_weights:
                of_weights = (_of_weights_apart if ctx.apart else _of_weights)(saved, arrived)
        of_terms += [None] * (len(ctx.needs_input_grad) - 8 - len(of_terms))
        return None, *of_weights, *of_terms


class _Saved(NamedTuple):
    pixels: Tensor  # [961, C * n]
    seen: Tensor  # [49 + 2, 49, C * n]: windows of scaled pixels, scale times mean, 1
    scale: Tensor  # [C, n]
    mean: Tensor  # [C, n]
    normal: Tensor  # [C * n, 49 * 32]: output of the second norm, without gain and offset
    middle_scale: Tensor  # [C * n, 1]
    gained: Tensor  # [64, 49 * 32]: the third convolution times the gain before it
    products: Tensor  # [C * n, 64 + 2]: of normal with gained and constants
    constants: Tensor  # [2, 49 * 32]: coefficients of scale times mean, and of 1, in the middle
    by_place: Tensor  # [64, 49 * 32]: the third convolution
    gain: Tensor  # [49 * 32]
    offset: Tensor  # [49 * 32]


class _Arrived(NamedTuple):
    """Gradients of each row's scalars. The gradient of the middle [49 * 32] enters only through products:

    middle_scale * (gained^T grad - normal * along)
    """

    grad: Tensor  # [C * n, 64]
    along: Tensor  # [C * n, 1]
    squares: Tensor  # [C, n]: of the sum of squares
    sum: Tensor  # [C, n]: of the sum


def _arrived(saved: _Saved, grad: Tensor) -> _Arrived:
    scale, middle_scale = saved.scale, saved.middle_scale
    product, steady = saved.products.split([FEATURES, 2], dim=1)
    along = (grad * product).sum(dim=1, keepdim=True) / MIDDLE
    at_constants = middle_scale * (grad @ (saved.gained @ saved.constants.mT) - along * steady)
    at_mean, at_one = at_constants.mT.view(2, *scale.shape)
    # The gradient of a layer norm is orthogonal to its input, except for eps.
    at_middle = (along * MIDDLE * EPS * middle_scale.square()).view(scale.shape)
    variance = -0.5 * scale.square() * (at_middle - at_one)
    return _Arrived(grad, along, variance / VALUES, (scale * at_mean - 2 * saved.mean * variance) / VALUES)


def _client_gradients(saved: _Saved, arrived: _Arrived) -> list[Tensor]:
    """Gradients of `ClientTerms`. Rows are summed before the linear maps, so no row needs the middle's gradient."""
    clients, count = saved.scale.shape
    scales = saved.middle_scale * saved.scale.view(-1, 1)
    grad = (scales * arrived.grad).view(clients, count, FEATURES).sum(dim=1) @ saved.gained
    along = (scales * arrived.along).view(clients, 1, count)
    return [
        torch.baddbmm(grad[:, None], along, saved.normal.view(clients, count, MIDDLE), alpha=-1)[:, 0],
        _summed_by_client(saved.pixels, 2 * arrived.squares),
        arrived.sum.sum(dim=1),
        arrived.squares.sum(dim=1),
    ]


def _at_middle(saved: _Saved, arrived: _Arrived) -> Tensor:
    found = (saved.middle_scale * arrived.grad) @ saved.gained
    found.addcmul_(saved.normal, saved.middle_scale * arrived.along, value=-1)
    return found.view(-1, PLACES, CHANNELS)


def _of_weights(saved: _Saved, arrived: _Arrived) -> tuple[Tensor, ...]:
    grad, own = arrived.grad, saved.seen[:OWN]
    weight = (arrived.squares / saved.scale.square()).view(-1)
    of_gained, of_bias = grad.mT @ saved.normal, grad.sum(dim=0)
    return (
        torch.bmm(saved.seen.transpose(0, 1), _at_middle(saved, arrived).transpose(0, 1)),
        (own * weight).view(OWN, -1) @ own.view(OWN, -1).mT,
        saved.pixels @ arrived.sum.view(-1),
        _by_channel(of_gained * saved.gain + of_bias[:, None] * saved.offset),
        of_bias,
        _by_channel((of_gained * saved.by_place).sum(dim=0)),
        _by_channel(of_bias @ saved.by_place),
    )


def _of_weights_apart(saved: _Saved, arrived: _Arrived) -> tuple[Tensor, ...]:
    """The same, separately for each client."""
    clients, count = saved.scale.shape
    by_client = saved.seen.view(-1, PLACES, clients, count)
    at_middle = _at_middle(saved, arrived).view(clients, count, PLACES, CHANNELS)
    of_windows = saved.seen.new_empty(clients, PLACES, len(by_client), CHANNELS)
    for client, found in enumerate(of_windows):
        torch.bmm(by_client[:, :, client].transpose(0, 1), at_middle[client].transpose(0, 1), out=found)
    own = by_client[:OWN].permute(2, 0, 1, 3).contiguous()  # [C, 25, 49, n]
    weighted = own * (arrived.squares / saved.scale.square())[:, None, None]
    grad = arrived.grad.view(clients, count, FEATURES)
    into_third = torch.addcmul(saved.offset, saved.normal, saved.gain).view(clients, count, MIDDLE)
    at_third = (arrived.grad @ saved.by_place).mul_(saved.normal).view(clients, count, MIDDLE)
    of_bias = grad.sum(dim=1)
    return (
        of_windows,
        torch.bmm(weighted.view(clients, OWN, -1), own.view(clients, OWN, -1).mT),
        _summed_by_client(saved.pixels, arrived.sum),
        _by_channel(torch.bmm(grad.mT, into_third)),
        of_bias,
        _by_channel(at_third.sum(dim=1)),
        _by_channel(of_bias @ saved.by_place),
    )


def _summed_by_client(pixels: Tensor, weight: Tensor) -> Tensor:
    """[961, C * n] weighted by [C, n]: [C, 961]."""
    return (pixels * weight.view(-1)).unflatten(1, weight.shape).sum(dim=2).mT


def _by_place(weight: Tensor) -> Tensor:
    """[..., 32, 7, 7] -> [..., 49 * 32], channels last."""
    return weight.movedim(-3, -1).flatten(-3)


def _by_channel(value: Tensor) -> Tensor:
    """The inverse of `_by_place`."""
    return value.unflatten(-1, (7, 7, CHANNELS)).movedim(-1, -3)


@cache
def _pixel_of_window(device: torch.device) -> Tensor:
    """Flat indices of every window's pixels in the padded image: [49 pixels, 49 places], flattened."""
    corner = [4 * row * PADDED + 4 * column for row in range(7) for column in range(7)]
    inside = [row * PADDED + column for row, column in (divmod(at, WINDOW) for at in ORDER)]
    return torch.tensor([pixel + start for pixel in inside for start in corner], device=device)


@cache
def _pixels_of_values(device: torch.device) -> list[Tensor]:
    """For each of a window's nine values, the indices of the nine window pixels that it sees."""
    near = [divmod(at, 3) for at in range(9)]
    return [
        torch.tensor(
            [ORDER.index((2 * down + row) * WINDOW + 2 * right + column) for row, column in near], device=device
        )
        for down, right in near
    ]
