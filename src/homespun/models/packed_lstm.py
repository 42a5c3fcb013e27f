"""An LSTM layer for many clients with their own weights, over sequences packed by time step.

Sequences of different lengths are sorted by length, longest first, so that the rows still running at a step come first.
`pack` lays their elements out step by step without padding at the end; all clients share the layout, so a step has as
many rows as the client with most running sequences. Positions of a client that has fewer hold arbitrary values, which
`Packed.real` excludes.

The backward pass is written by hand: autograd would record about ten operations per step and layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from homespun.models import products

_sigmoid_backward = torch.ops.aten.sigmoid_backward
_tanh_backward = torch.ops.aten.tanh_backward


@dataclass(frozen=True)
class Packed:
    """The layout of C x B sequences in P positions."""

    sizes: tuple[int, ...]  # running rows per step, not increasing; their sum is P
    order: Tensor  # [C, B]: the sequence in each row
    row: Tensor  # [P]: the row of each position
    step: Tensor  # [P]
    last: Tensor  # [C, B]: the position of the last element, by sequence; 0 for an empty one
    real: Tensor  # [C, P]: whether a position holds an element
    longest: int

    @property
    def positions(self) -> int:
        return len(self.row)

    def sequence(self) -> Tensor:
        """The sequence at each position, [C, P]."""
        return self.order[:, self.row]

    def pack(self, values: Tensor) -> Tensor:
        """Values by sequence and step, [C, B, T], in packed positions, [C, P]."""
        return values.flatten(1).gather(1, self.sequence() * values.shape[2] + self.step)

    def unpack(self, packed: Tensor, *, steps: int) -> Tensor:
        """The inverse of `pack`, [C, B, steps], with 0 where there is no element."""
        clients, rows = self.order.shape
        out = packed.new_zeros(clients, rows * steps)
        index = (self.sequence() * steps + self.step)[:, :]
        return out.scatter(1, index, packed.where(self.real, torch.zeros_like(packed))).view(clients, rows, steps)

    def final(self, states: Tensor) -> Tensor:
        """The state [C, B, H] of each sequence after its last element, from the states [C, P, H] at all positions."""
        return states.gather(1, self.last[:, :, None].expand(-1, -1, states.shape[2]))

    def rows_of(self, values: Tensor) -> Tensor:
        """Values by sequence, [C, B, ...], in the order of rows."""
        index = self.order.view(*self.order.shape, *[1] * (values.dim() - 2)).expand_as(values)
        return values.gather(1, index)


def pack(lengths: Tensor) -> Packed:
    """The layout of sequences with these lengths, [C, B], each at least 1."""
    ordered, order = lengths.sort(dim=1, descending=True, stable=True)
    longest = int(ordered[:, 0].max())
    steps = torch.arange(longest, device=lengths.device)
    running = (ordered[:, :, None] > steps).sum(dim=1)  # [C, T]
    sizes = running.amax(dim=0)
    step = torch.repeat_interleave(steps, sizes)
    offsets = sizes.cumsum(0) - sizes
    row = torch.arange(len(step), device=lengths.device) - offsets[step]
    last = torch.empty_like(order).scatter_(1, order, offsets[ordered - 1] + torch.arange(order.shape[1]).to(order))
    return Packed(tuple(sizes.tolist()), order, row, step, last, ordered[:, row] > step, longest)


def lstm_layer(
    inputs: Tensor,
    *,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor,
    sizes: Sequence[int],
    start: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Hidden and cell states [C, P, H] at every position.

    inputs [C, P, E]; weights [C, 4H, E] and [C, 4H, H] with the gates of `nn.LSTM` (input, forget, cell, output); bias
    [C, 1, 4H], or one per position [C, P, 4H]; `start` is the state [C, B, H] of each row before the first step.
    """
    clients, rows, hidden = len(inputs), sizes[0], weight_hh.shape[2]
    if start is None:
        start = (inputs.new_zeros(clients, rows, hidden),) * 2
    return _Layer.apply(inputs, *start, weight_ih, weight_hh, bias, tuple(sizes))


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, h0: Tensor, c0: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        weight_ih, weight_hh, bias, sizes = rest
        gates = products.bmm(inputs, weight_ih.mT)
        gates += bias
        clients, positions, _ = inputs.shape
        hidden = weight_hh.shape[2]
        states, cells, tanhs = (inputs.new_empty(clients, positions, hidden) for _ in range(3))
        recurrent = weight_hh.mT
        # Views of all steps are made in bulk: slicing in the loop would cost as much as the arithmetic.
        steps = (gates, *gates.split((2 * hidden, hidden, hidden), dim=2), states, cells, tanhs)
        h, c = h0, c0
        for step in zip(*(one.split(sizes, dim=1) for one in steps), strict=True):
            gate, input_and_forget, candidate, output, state, cell, tanh = step
            rows = gate.shape[1]
            if rows < h.shape[1]:
                h, c = h[:, :rows], c[:, :rows]
            gate += products.bmm(h, recurrent)
            i, f = input_and_forget.sigmoid_().chunk(2, dim=2)
            candidate.tanh_()
            torch.mul(f, c, out=cell).addcmul_(i, candidate)
            torch.mul(output.sigmoid_(), torch.tanh(cell, out=tanh), out=state)
            h, c = state, cell
        ctx.set_materialize_grads(False)  # often nothing reads the cells
        if any(ctx.needs_input_grad):
            ctx.sizes, ctx.bias_rows = sizes, bias.shape[1]
            ctx.save_for_backward(inputs, h0, c0, weight_ih, weight_hh, gates, states, cells, tanhs)
        return states, cells

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_states: Tensor | None, grad_cells: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, h0, c0, weight_ih, weight_hh, gates, states, cells, tanhs = ctx.saved_tensors
        previous_h = _previous(h0, states, ctx.sizes)
        factors = _gate_factors(gates, tanhs, _previous(c0, cells, ctx.sizes))
        grad_gates, grad_h0, grad_c0 = _through_time(
            grad_states, grad_cells, factors=factors, gates=gates, weight_hh=weight_hh, start=h0, sizes=ctx.sizes
        )
        wants = ctx.needs_input_grad
        return (
            products.bmm(grad_gates, weight_ih) if wants[0] else None,
            grad_h0 if wants[1] else None,
            grad_c0 if wants[2] else None,
            products.bmm(grad_gates.mT, inputs) if wants[3] else None,
            products.bmm(grad_gates.mT, previous_h) if wants[4] else None,
            (grad_gates.sum(dim=1, keepdim=True) if ctx.bias_rows == 1 else grad_gates) if wants[5] else None,
            None,
        )


def _previous(start: Tensor, states: Tensor, sizes: Sequence[int]) -> Tensor:
    """The state before each position, [C, P, H]."""
    steps = [start, *states.split(sizes, dim=1)[:-1]]
    return torch.cat([one[:, :rows] for one, rows in zip(steps, sizes, strict=True)], dim=1)


def _gate_factors(gates: Tensor, tanhs: Tensor, previous_c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The derivatives of a step: of the cell by the gates before activation (input, forget, cell), of the state by the
    output gate before activation, and of the state by the cell."""
    i, f, g, o = gates.chunk(4, dim=-1)
    of_cell = torch.empty_like(gates[..., : 3 * g.shape[-1]])
    of_input, of_forget, of_candidate = of_cell.chunk(3, dim=-1)
    # `sigmoid_backward(x, y)` is x y (1 - y) and `tanh_backward(x, y)` x (1 - y^2), in one pass.
    _sigmoid_backward(g, i, grad_input=of_input)
    _sigmoid_backward(previous_c, f, grad_input=of_forget)
    _tanh_backward(i, g, grad_input=of_candidate)
    return of_cell, _sigmoid_backward(tanhs, o), _tanh_backward(o, tanhs)


def _through_time(
    grad_states: Tensor | None,
    grad_cells: Tensor | None,
    *,
    factors: tuple[Tensor, Tensor, Tensor],
    gates: Tensor,
    weight_hh: Tensor,
    start: Tensor,
    sizes: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the gates before activation [C, P, 4H], and of the state before the first step."""
    of_cell, of_output, state_by_cell = factors
    hidden = weight_hh.shape[2]
    grad_gates = torch.empty_like(gates)
    nothing = (None,) * len(sizes)
    steps = (
        state_by_cell,
        of_cell.unflatten(-1, (3, hidden)),
        grad_gates[..., : 3 * hidden].unflatten(-1, (3, hidden)),
        of_output,
        grad_gates[..., 3 * hidden :],
        gates[..., hidden : 2 * hidden],
        grad_gates,
    )
    grad_h, grad_c = torch.zeros_like(start), torch.zeros_like(start)
    from_outside = [nothing if one is None else one.split(sizes, dim=1) for one in (grad_states, grad_cells)]
    for step in reversed(list(zip(*from_outside, *(one.split(sizes, dim=1) for one in steps), strict=True))):
        state, cell, by_cell, cell_factor, into_cell, output_factor, into_output, forget, gate = step
        rows = gate.shape[1]
        h, c = (grad_h, grad_c) if rows == grad_h.shape[1] else (grad_h[:, :rows], grad_c[:, :rows])
        if state is not None:
            h += state
        if cell is not None:
            c += cell
        c.addcmul_(h, by_cell)
        torch.mul(cell_factor, c.unsqueeze(2), out=into_cell)
        torch.mul(output_factor, h, out=into_output)
        c *= forget
        h.copy_(products.bmm(gate, weight_hh))
    return grad_gates, grad_h, grad_c
