"""A fused kernel for FedEmbed's speech encoder, for many clients that have the same weights.

Nine tenths of the work is in the front part, up to the second convolution:

    x = first(pixels) + shift                  16 channels of 50 x 41; the shift of a client is from diag(e) and bias
    y = gain (x - mean) scale + offset         the first norm; mean and scale are two numbers per row
    z = second(y)                              32 channels of 7 x 6, before the bias

Both convolutions are followed by average pooling. The mean of a convolution is the convolution of a mean: the inputs of
each weight are summed first, by rows and then by columns, and each weight is used once per output instead of six or
nine times. The values to average are never stored.

A head whose gradient must reach the embedding but not the weights (section 3.2 of the paper) needs only the gradient of
the shift, summed over a client's rows. With g the gradient of z, and <> the mean over the inputs of the norm, it is the
sum over rows of

    scale (gain second^T(g) - <gain second^T(g)> - scale (x - mean) <gain second^T(g) scale (x - mean)>)
    where    <gain second^T(g)> = g . second(gain) / size
             <gain second^T(g) scale (x - mean)> = g . (z - second(offset)) / size

so the sum over rows is taken first, at the size of z, and the second convolution is transposed once per client. One
forward pass serves all heads.

Clients are processed one at a time, so that intermediate values stay in the cache. If weights are one value expanded to
[C, ...], each client gets its own gradient. For measurements see docs/decisions/0006-preferences.md.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from homespun.core.errors import MethodError
from homespun.core.tree import Tree
from homespun.models.stacked_layers import Geometry, geometry, stacked_sequential

# The first convolution: a window of 3 x 5 with stride 2 x 3, and a mean of 2 x 3 places; together a stride of 4 x 9.
FIRST, WINDOW = Geometry(stride=(2, 3), padding=(1, 0), pool=(2, 3)), (3, 5)
FRONT, CHANNELS = (50, 41), 16  # inputs of the first norm
ROW, SEEN = FRONT[1] * CHANNELS, FRONT[0] * FRONT[1] * CHANNELS
# The second: a window of 5 x 5 with stride 2 x 2, and a mean of 3 x 3 places; together a stride of 6 x 6.
SECOND, SIDE = Geometry(stride=(2, 2), padding=(0, 0), pool=(3, 3)), 5
BEHIND, FEATURES = (7, 6), 32  # inputs of the second norm
SHIFTS = (0, 2, 4)  # offsets of the places that its mean is taken over
EPS = 1e-5


def encode_speech(
    layers: nn.Sequential, encoder: Tree, image: Tensor, *, embedding: Tensor | None, for_common: bool
) -> tuple[Tensor, Tensor]:
    """Two copies of the features [C, n, 256] of uint8 spectrograms [C, n, 200, 375], by the layers of appendix B.2.

    All clients have the same weights (`weights_are_shared`). With `for_common` the second copy passes gradients to the
    embedding but not to the encoder's weights.
    """
    if (geometry(layers[0], layers[1]), geometry(layers[3], layers[4])) != (FIRST, SECOND):
        raise MethodError("speech: these are not the layers of the fused kernel")
    fixed = {name: value.detach() for name, value in encoder.items()}
    shift = client_shift(encoder, embedding, len(image))
    again = client_shift(fixed, embedding, len(image)) if for_common else None
    first = encoder["0.weight"]
    weights = first.narrow(first.dim() - 3, 0, 1), encoder["2.weight"], encoder["2.bias"], encoder["3.weight"]
    found = _Front.apply(image, *weights, shift, again)
    if not for_common:
        features = _behind(layers, encoder, found)
        return features, features
    return _behind(layers, encoder, found[0]), _behind(layers, fixed, found[1])


def client_shift(encoder: Tree, embedding: Tensor | None, clients: int) -> Tensor:
    """The contribution of diag(e) and the bias to the first convolution: [C, 50, 41, 16]."""
    weight = encoder["0.weight"]
    shift = encoder["0.bias"].expand(clients, -1)[:, None].expand(-1, FRONT[0] * FRONT[1], -1)
    if embedding is not None:
        wide = FIRST.widened(weight.select(weight.dim() - 3, 1))
        place, pixel, down, right = _on_diagonal(embedding.shape[1], embedding.device)
        shift = shift.index_add(1, place, embedding[:, pixel, None] * wide[..., down, right].mT)
    return shift.unflatten(1, FRONT)


@cache
def _on_diagonal(size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Every place whose window contains a pixel of the diagonal, that pixel, and its row and column in the window."""
    (top, left), (down, right) = FIRST.padding, FIRST.steps
    height, width = FIRST.widened(torch.zeros(WINDOW)).shape
    met = [
        (row * FRONT[1] + column, pixel, pixel + top - down * row, pixel + left - right * column)
        for pixel in range(size)
        for row in range(FRONT[0])
        for column in range(FRONT[1])
        if 0 <= pixel + top - down * row < height and 0 <= pixel + left - right * column < width
    ]
    place, pixels, rows, columns = torch.tensor(met, device=device).unbind(dim=1)
    return place, pixels, rows, columns


def _behind(layers: nn.Sequential, encoder: Tree, front: Tensor) -> Tensor:
    """The layers after the products of the second convolution."""
    bias = encoder["3.bias"]
    front = front + (bias if bias.dim() == 1 else bias[:, None, None, None])
    return stacked_sequential(layers, encoder, front, after=5)


class _Front(torch.autograd.Function):
    """z [C, n, 7, 6, 32]. With a second shift, also a copy of z whose gradient reaches only that shift."""

    @staticmethod
    def forward(
        ctx: Any,
        image: Tensor,
        first: Tensor,
        gain: Tensor,
        offset: Tensor,
        second: Tensor,
        shift: Tensor,
        again: Tensor | None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        ctx.apart, ctx.wants_weights = first.dim() == 5, any(ctx.needs_input_grad[1:5])
        if ctx.apart:
            first, gain, offset, second = (value[0] for value in (first, gain, offset, second))
        gain, offset = (value.movedim(0, -1).contiguous() for value in (gain, offset))
        by_row, by_box = _by_row(first), _by_box(second)
        clients, count = image.shape[:2]
        values = shift.new_empty(clients, count, *FRONT, CHANNELS)  # x
        outputs = shift.new_empty(clients, count, *BEHIND, FEATURES)
        scales, pixels, boxes = [], [], []
        for picture, own, value, output in zip(image, shift, values, outputs, strict=True):
            seen, flat = _add_pixels(picture, by_row.dtype), value.view(-1, CHANNELS)
            torch.mm(seen[0], by_row[0], out=flat)
            for row in range(1, len(seen)):
                flat.addmm_(seen[row], by_row[row])
            value += own
            normed, mean, scale = torch.native_layer_norm(value, gain.shape, gain, offset, EPS)
            added = _add_places(normed)
            torch.mm(added, by_box, out=output.view(-1, FEATURES))
            scales.append(torch.stack([mean, scale]).view(2, count))
            if ctx.wants_weights:
                pixels.append(seen)
                boxes.append(added)
        ctx.save_for_backward(values, outputs, torch.stack(scales), gain, offset, by_box, *pixels, *boxes)
        return outputs if again is None else (outputs, outputs.clone())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        first, *second = (grad.contiguous() for grad in grads)
        at_again = _at_shift(ctx, second[0]) if ctx.needs_input_grad[6] else None
        if ctx.wants_weights:
            return None, *_at_weights_and_shift(ctx, first), at_again
        return None, None, None, None, None, _at_shift(ctx, first) if ctx.needs_input_grad[5] else None, at_again


def _at_weights_and_shift(ctx: Any, grads: Tensor) -> tuple[Tensor, ...]:
    """Gradients of the weights, summed or per client, and of the shift, which they pass through."""
    values, _, scales, gain, offset, by_box, *kept = ctx.saved_tensors
    clients = len(values)
    at_shift, each = torch.empty_like(values[:, 0]), []
    for client, (grad, pixels, boxes) in enumerate(zip(grads, kept[:clients], kept[clients:], strict=True)):
        mean, scale = scales[client].view(2, -1, 1, 1, 1)
        grad = grad.view(-1, FEATURES)
        at_normed = _add_places_back(grad @ by_box.mT)
        at_values, of_gain, of_offset = torch.ops.aten.native_layer_norm_backward(
            at_normed, values[client], gain.shape, mean, scale, gain, offset, [True, True, True]
        )
        torch.sum(at_values, dim=0, out=at_shift[client])
        flat = at_values.view(-1, CHANNELS)
        of_rows = torch.stack([seen.mT @ flat for seen in pixels])
        each.append((of_rows, of_gain, of_offset, boxes.mT @ grad))
    together = [torch.stack(some) for some in zip(*each, strict=True)]
    of_rows, of_gain, of_offset, of_box = together if ctx.apart else [value.sum(dim=0) for value in together]
    return _by_row_back(of_rows), of_gain.movedim(-1, -3), of_offset.movedim(-1, -3), _by_box_back(of_box), at_shift


def _at_shift(ctx: Any, grad: Tensor) -> Tensor:
    """The gradient of every client's shift [C, 50, 41, 16] from the gradient of z: the equation above."""
    values, outputs, scales, gain, offset, by_box, *_ = ctx.saved_tensors
    of_gain, of_offset = (_add_places(value[None]) @ by_box for value in (gain, offset))  # [42, 32]
    mean, scale = scales.unbind(dim=1)  # [C, n]
    steady = (grad.flatten(2) @ of_gain.view(-1)) / SEEN
    along = (grad.flatten(2) * (outputs.flatten(2) - of_offset.view(-1))).sum(dim=2) / SEEN
    summed = torch.bmm(scale[:, None], grad.flatten(2))
    through = _add_places_back(summed.view(-1, FEATURES) @ by_box.mT)
    weight = scale.square() * along
    with_values = torch.bmm(weight[:, None], values.flatten(2)).view(through.shape)
    constant = (scale * steady - weight * mean).sum(dim=1)
    return through * gain - with_values - constant[:, None, None, None]


# The first convolution


def _add_pixels(image: Tensor, dtype: torch.dtype) -> Tensor:
    """For each of a window's three rows, the summed inputs of its weights at every place: [3, n * 50 * 41, 9].

    The window uses the first five of the nine columns; the others keep the memory contiguous.
    """
    (down, right), (two, three) = FIRST.steps, FIRST.stride
    padded = torch.zeros(len(image), 1 + image.shape[1], image.shape[2], dtype=torch.int16, device=image.device)
    padded[:, 1:] = image
    found = torch.empty(WINDOW[0], len(image), FRONT[0], right * FRONT[1], dtype=dtype, device=image.device)
    for row, sums in enumerate(found):
        both = padded[:, row:-two:down][:, : FRONT[0]] + padded[:, row + two :: down]
        width = sums.shape[-1]
        across = both[..., :width] + both[..., three : three + width]
        across += both[..., 2 * three :]
        sums[:] = across
    return found.view(WINDOW[0], -1, right)


PIXELS_IN_A_MEAN = prod(FIRST.pool) * 255  # bytes are scaled to at most one


def _by_row(first: Tensor) -> Tensor:
    """[16, 1, 3, 5] -> [3, 9, 16]."""
    found = first.new_zeros(WINDOW[0], FIRST.steps[1], CHANNELS)
    found[:, : WINDOW[1]] = first[:, 0].permute(1, 2, 0) / PIXELS_IN_A_MEAN
    return found


def _by_row_back(of_rows: Tensor) -> Tensor:
    """[..., 3, 9, 16] -> [..., 16, 1, 3, 5]."""
    return of_rows[..., : WINDOW[1], :].movedim(-1, -3)[..., None, :, :] / PIXELS_IN_A_MEAN


# The second convolution. The shapes below are also the memory layouts.


def _rows_seen(normed: Tensor, shift: int) -> Tensor:
    """A view of [n, 50, 41, 16] as the five rows of each of seven windows: [n, 7, 5, 41 * 16]."""
    size = (len(normed), BEHIND[0], SIDE, ROW)
    step = (SEEN, SECOND.steps[0] * ROW, ROW, 1)
    return normed.as_strided(size, step, normed.storage_offset() + shift * ROW)


def _columns_seen(rows: Tensor, shift: int) -> Tensor:
    """A view of [n, 7, 5, 41 * 16] as the five columns of each of six windows: [n, 7, 6, 5, 5 * 16]."""
    size = (len(rows), *BEHIND, SIDE, SIDE * CHANNELS)
    step = (BEHIND[0] * SIDE * ROW, SIDE * ROW, SECOND.steps[1] * CHANNELS, ROW, 1)
    return rows.as_strided(size, step, rows.storage_offset() + shift * CHANNELS)


def _add_places(normed: Tensor) -> Tensor:
    """The summed inputs of the weights at every place: [n, 50, 41, 16] -> [n * 42, 5 * 5 * 16]."""
    one, two, three = SHIFTS
    rows = _rows_seen(normed, one) + _rows_seen(normed, two)
    rows += _rows_seen(normed, three)
    found = rows.new_empty(len(rows), *BEHIND, SIDE, SIDE * CHANNELS)
    torch.add(_columns_seen(rows, one), _columns_seen(rows, two), out=found)
    found += _columns_seen(rows, three)
    return found.view(-1, SIDE * SIDE * CHANNELS)


def _add_places_back(grad: Tensor) -> Tensor:
    """[n * 42, 5 * 5 * 16] -> [n, 50, 41, 16]. A view has every element at most once, so adding in place is safe."""
    grad = grad.view(-1, *BEHIND, SIDE, SIDE * CHANNELS)
    rows = grad.new_zeros(len(grad), BEHIND[0], SIDE, ROW)
    for shift in SHIFTS:
        _columns_seen(rows, shift).add_(grad)
    found = grad.new_zeros(len(grad), *FRONT, CHANNELS)
    for shift in SHIFTS:
        _rows_seen(found, shift).add_(rows)
    return found


def _by_box(second: Tensor) -> Tensor:
    """[32, 16, 5, 5] -> [5 * 5 * 16, 32]."""
    return second.permute(2, 3, 1, 0).reshape(-1, FEATURES) / prod(SECOND.pool)


def _by_box_back(of_box: Tensor) -> Tensor:
    """[..., 5 * 5 * 16, 32] -> [..., 32, 16, 5, 5]."""
    return of_box.unflatten(-2, (SIDE, SIDE, CHANNELS)).movedim((-1, -2), (-4, -3)) / prod(SECOND.pool)
