"""A bidirectional LSTM for many clients at once, each with its own weights.

`stacked_bilstm` computes what `nn.LSTM(bidirectional=True, batch_first=True)` computes on a packed sequence,
final states or the largest value of each state over the text, for a whole chunk of clients: every tensor has a
leading client axis C. First-order gradients are written out by hand.

    symbol  meaning                                        shape
    C, B    clients, examples of each
    L, E, H longest text, input size, hidden size
    V       rows of the table the inputs are taken from
    N       2 C: first every client's forward direction, then every client's backward direction

Optimizations, largest gain first:

- **One matrix product per time step** for all clients and both directions; everything that does not depend
  on the previous step is computed outside the recurrence or folded into scaled weights.
- **Only sigmoids.** tanh(x) = 2 sigmoid(2x) - 1, and torch's sigmoid is three times as fast as its tanh, so
  all four gates are one call. The doublings vanish into the weights: the recurrence carries u = 2c and
  k = h/2, with i, f, o = sigmoid(a) and s = sigmoid(2 a_g) (gate order of nn.LSTM: i, f, g, o):

      u_t = f u_{t-1} + 4 i (s - 1/2),   q = sigmoid(u_t),   k_t = o (q - 1/2)

- **Derivatives while the values are in the cache.** Instead of activations, the forward pass saves the factors
  of the backward recurrence:

      dk/du = o q (1-q)      dk/da_o = (q - 1/2) o (1-o)
      du/da_i = 4 (s - 1/2) i (1-i)      du/da_f = u_{t-1} f (1-f)      du/d(2a_g) = 4 i s (1-s)

  The constants are left out of the factors and applied once per weight matrix (`_DROPPED`).
- **Project the table, not the text.** Inputs are rows of a table (character embeddings). Each row is
  multiplied by the input weights once, however often it occurs; gradients are summed per row first.
- **Ragged texts without masks.** Both directions are aligned to *end* at the last step, so a short text
  begins with padding. A padding row closes the input gate (i = 0), which holds the state at exactly zero,
  and with it every derivative.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Pooling = Literal["final", "max"]

_PLAIN_NAMES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
WEIGHT_NAMES = _PLAIN_NAMES + tuple(f"{name}_reverse" for name in _PLAIN_NAMES)

# Per gate i, f, g, o. Only the g gate's input is doubled (tanh as a sigmoid).
_DOUBLED = (1.0, 1.0, 2.0, 1.0)
# What the saved factors leave out of d/da: the 4 of the cell equation, and the doubling of a_g.
_DROPPED = (4.0, 1.0, 8.0, 1.0)
# sigmoid(-1e4) is exactly 0 in float32 and float64; infinity would make 0 * inf in the projection.
_CLOSED = -1e4

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input  # (grad, y) -> grad * y * (1 - y), in one pass


def stacked_bilstm(
    table: Tensor, text: Tensor, *, lengths: Tensor, weights: Mapping[str, Tensor], pooling: Pooling = "final"
) -> Tensor:
    """The states [C, B, 2H] (forward ++ backward) of a BiLSTM over `table[c, text[c, b, :lengths[c, b]]]`.

    table [C, V, E]; text [C, B, L] row numbers, where entries beyond a text's length may be any row; lengths [C, B]
    from 0 to L; a text of length 0 has the state zero. `weights` has the names and layouts of `nn.LSTM`, each with a
    leading client axis. `pooling` is "final" for each direction's last state, or "max" for the maximum over the text.
    """
    ordered = [weights[name] for name in WEIGHT_NAMES]
    text = text[:, :, : max(int(lengths.max()), 1)].long()
    learns = torch.is_grad_enabled() and any(each.requires_grad for each in (table, *ordered))
    if not learns and len(table) > 1 and all(each.stride(0) == 0 for each in (table, *ordered)):
        # All clients have the same weights: treat them as one client with all texts, for larger matrix products.
        whole = stacked_bilstm(
            table[:1],
            text.flatten(0, 1)[None],
            lengths=lengths.flatten()[None],
            weights={name: weights[name][:1] for name in WEIGHT_NAMES},
            pooling=pooling,
        )
        return whole.view(*lengths.shape, -1)
    if table.shape[1] > text[0].numel():
        table, text = _only_used_rows(table, text)
    rows = _aligned_rows(text, lengths, padding=table.shape[1])
    return _StackedBiLSTM.apply(rows, learns, pooling, table, *ordered)


def _only_used_rows(table: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
    """A table with one row per character of the text, for vocabularies larger than a batch."""
    clients, _, dim = table.shape
    used = table.gather(1, text.flatten(1)[:, :, None].expand(-1, -1, dim))
    return used, torch.arange(used.shape[1], device=text.device).view_as(text[0]).expand(clients, -1, -1)


def _aligned_rows(text: Tensor, lengths: Tensor, *, padding: int) -> Tensor:
    """Row numbers [N, L, B] in the order the two directions read them, padding first."""
    longest = text.shape[2]
    position = torch.arange(longest, device=text.device)
    backward = text.flip(2)
    forward = text
    if bool((lengths != longest).any()):
        missing = (longest - lengths)[:, :, None]
        is_padding = position < missing
        backward = backward.masked_fill(is_padding, padding)
        forward = text.gather(2, (position - missing).clamp_min(0)).masked_fill_(is_padding, padding)
    return torch.cat((forward, backward)).transpose(1, 2)


class _StackedBiLSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, keep: bool, pooling: Pooling, table: Tensor, *weights: Tensor) -> Tensor:
        count, length, batch = rows.shape
        clients, height, _ = table.shape
        hidden = weights[1].shape[2]
        is_padding = rows == height
        # Row numbers within the concatenated projected tables of all clients and directions.
        rows = rows + (torch.arange(count, device=rows.device) * (height + 1)).view(-1, 1, 1)
        steps = rows.transpose(0, 1).reshape(length, count * batch)
        projected = _project(table, weights)
        recurrent = _recurrent_weights(weights[1], weights[5])
        last, saved = _recur(projected, steps, recurrent=recurrent, batch=batch, keep=keep or pooling == "max")
        state, at = (last, None) if pooling == "final" else _largest(saved[-1], last, is_padding)
        if keep:
            ctx.at = at
            ctx.save_for_backward(rows, table, *weights, *saved)
        return (2 * state).view(2, clients, batch, hidden).permute(1, 2, 0, 3).reshape(clients, batch, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, table, *rest = ctx.saved_tensors
        weights, (gate_factors, cell_factors, forget, states) = rest[:8], rest[8:]
        wants_table, wants = ctx.needs_input_grad[3], ctx.needs_input_grad[4:]
        grads: list[Tensor | None] = [None] * 8
        grad_gates = _recur_backward(
            grad,
            at=ctx.at,
            gate_factors=gate_factors,
            cell_factors=cell_factors,
            forget=forget,
            recurrent=weights[1::4],
        )
        if wants[1] or wants[5]:
            grads[1], grads[5] = _recurrent_grads(grad_gates, states)
        grad_table = None
        if wants_table or wants[0] or wants[2] or wants[3] or wants[4] or wants[6] or wants[7]:
            per_row = _sum_per_row(grad_gates, rows, clients=table.shape[0], height=table.shape[1])
            if wants[0] or wants[4]:
                grads[0], grads[4] = _input_grads(per_row, table)
            if wants[2] or wants[3] or wants[6] or wants[7]:
                bias = per_row.sum(2).unflatten(2, (4, -1)) * _per_gate(_DROPPED, per_row, trailing=1)
                grads[2], grads[6] = grads[3], grads[7] = bias.flatten(2).unbind(0)
            if wants_table:
                grad_table = _table_grad(per_row, weights[0], weights[4])
        return (None, None, None, grad_table, *grads)


def _per_gate(values: Sequence[float], like: Tensor, *, trailing: int) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).view(4, *[1] * trailing)


def _project(table: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """The input's contribution to the gates for every row of the table: [2 C (V+1), 4H]; each last row is padding.

    The bias and the padding row are two more columns of the table, so that one product computes everything.
    """
    clients, height, dim = table.shape
    gates = weights[0].shape[1]
    extended = table.new_zeros(clients, height + 1, dim + 2)
    extended[:, :height, :dim] = table
    extended[:, :height, dim] = 1
    extended[:, height, dim + 1] = 1
    projected = table.new_empty(2, clients, height + 1, gates)
    doubled = _per_gate(_DOUBLED, table, trailing=1)
    for direction in range(2):
        weight_ih, _, bias_ih, bias_hh = weights[4 * direction : 4 * direction + 4]
        factor = table.new_zeros(clients, dim + 2, 4, gates // 4)
        torch.mul(weight_ih.mT.unflatten(2, (4, -1)), doubled, out=factor[:, :dim])
        torch.mul((bias_ih + bias_hh).unflatten(1, (4, -1)), doubled, out=factor[:, dim])
        factor[:, dim + 1, 0] = _CLOSED
        torch.bmm(extended, factor.flatten(2), out=projected[direction])
    return projected.view(-1, gates)


def _recurrent_weights(forward: Tensor, backward: Tensor) -> Tensor:
    """[N, H, 4H]: the factor of k = h/2; transposed once, because h @ W is faster than h @ W.T."""
    clients, gates, hidden = forward.shape
    out = forward.new_empty(2, clients, hidden, 4, gates // 4)
    scale = 2 * _per_gate(_DOUBLED, forward, trailing=1)
    for direction, weight in enumerate((forward, backward)):
        torch.mul(weight.mT.unflatten(2, (4, -1)), scale, out=out[direction])
    return out.view(2 * clients, hidden, gates)


def _recur(
    projected: Tensor, steps: Tensor, *, recurrent: Tensor, batch: int, keep: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The last k [N, B, H] and, with `keep`, gate factors, cell factors, forget gates and all k before it.

    The inputs of the backward recurrence are time-major; k is client-major, for the product with the gradients.
    """
    count, hidden, _ = recurrent.shape
    length = steps.shape[0]
    kept = length if keep else 0
    gate_factors = recurrent.new_empty(kept, count, batch, 4, hidden)
    cell_factors, forgets = recurrent.new_empty(2, kept, count, batch, hidden)
    states = recurrent.new_empty(count, length if keep else 1, batch, hidden)
    states[:, 0] = 0
    last, q, half = recurrent.new_empty(3, count, batch, hidden)
    half.fill_(0.5)  # a full tensor, because wrapping a Python number costs torch more than the subtraction
    gates = recurrent.new_empty(count * batch, 4 * hidden)
    gates_by_client = gates.view(count, batch, 4 * hidden)
    activations = gates.view(count, batch, 4, hidden)
    i, f, s, o = activations.unbind(2)
    # Gate slots of `now`: s - 1/2, u_{t-1}, i, q - 1/2: the factors of each gate's derivative.
    now, then = recurrent.new_empty(2, count, batch, 4, hidden)
    now_slots, then_slots = now.unbind(2), then.unbind(2)
    now_slots[1].zero_()
    targets = (*states.unbind(1)[1:], last) if keep else (states[:, 0],) * (length - 1) + (last,)
    previous = states[:, 0]
    # Views are made in bulk (unbind): indexing in the loop would cost as much as the arithmetic.
    outs = zip(gate_factors.unbind(0), cell_factors.unbind(0), forgets.unbind(0), strict=True)
    for step, target in zip(steps.unbind(0), targets, strict=True):
        s_slot, u, i_slot, q_slot = now_slots
        u_next = then_slots[1]
        torch.index_select(projected, 0, step, out=gates)
        gates_by_client.baddbmm_(previous, recurrent)
        gates.sigmoid_()
        torch.sub(s, half, out=s_slot)
        torch.mul(f, u, out=u_next)
        u_next.addcmul_(i, s_slot, value=4)
        torch.sigmoid(u_next, out=q)
        torch.sub(q, half, out=q_slot)
        torch.mul(o, q_slot, out=target)
        if keep:
            gate_factor, cell_factor, forget = next(outs)
            i_slot.copy_(i)
            _sigmoid_backward(now, activations, grad_input=gate_factor)
            _sigmoid_backward(o, q, grad_input=cell_factor)
            forget.copy_(f)
        previous = target
        now, then, now_slots, then_slots = then, now, then_slots, now_slots
    return last, (gate_factors, cell_factors, forgets, states)


def _largest(states: Tensor, last: Tensor, is_padding: Tensor) -> tuple[Tensor, Tensor]:
    """The maximum of k over the text [N, B, H], 0 for an empty text, and the step at which it occurs."""
    k = torch.cat((states[:, 1:], last[:, None]), dim=1)
    largest, at = k.masked_fill_(is_padding[..., None], -torch.inf).max(dim=1)
    return largest.masked_fill_(largest == -torch.inf, 0), at


def _recur_backward(
    grad: Tensor,
    *,
    at: Tensor | None,
    gate_factors: Tensor,
    cell_factors: Tensor,
    forget: Tensor,
    recurrent: Sequence[Tensor],
) -> Tensor:
    """Gradients of all gates before activation, without the constants of `_DROPPED`: [N, L, B, 4, H].

    `grad` is the gradient of the last step's k, or with `at` each of its numbers is of the step that `at` names.
    """
    length, count, batch, _, hidden = gate_factors.shape
    clients = count // 2
    weight = grad.new_empty(2, clients, 4, hidden * hidden)
    scale = 2 * _per_gate(_DROPPED, grad, trailing=1)
    for direction, each in enumerate(recurrent):
        torch.mul(each.reshape(clients, 4, -1), scale, out=weight[direction])
    weight = weight.view(count, 4 * hidden, hidden)
    grad_k = (2 * grad).view(clients, batch, 2, hidden).permute(2, 0, 1, 3).reshape(count, batch, hidden)
    direct: Sequence[Tensor | None] = [None] * length
    if at is not None:
        of_step = grad.new_zeros(length, count, batch, hidden).scatter_(0, at[None], grad_k[None])
        direct, grad_k = of_step.unbind(0), torch.zeros_like(grad_k)
    grad_u = torch.zeros_like(grad_k)
    grad_u_by_gate = grad_u.unsqueeze(2)
    out = grad.new_empty(count, length, batch, 4, hidden)
    steps = zip(
        cell_factors.unbind(0),
        gate_factors[:, :, :, :3].unbind(0),
        gate_factors[:, :, :, 3].unbind(0),
        forget.unbind(0),
        out[:, :, :, :3].unbind(1),
        out[:, :, :, 3].unbind(1),
        out.flatten(3).unbind(1),
        direct,
        strict=True,
    )
    for cell, of_cell, of_output, f, out_of_cell, out_of_output, out_all, own in reversed(list(steps)):
        if own is not None:
            grad_k += own
        grad_u.addcmul_(grad_k, cell)
        torch.mul(of_cell, grad_u_by_gate, out=out_of_cell)
        torch.mul(of_output, grad_k, out=out_of_output)
        grad_u.mul_(f)
        torch.bmm(out_all, weight, out=grad_k)
    return out


def _recurrent_grads(grad_gates: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    product = torch.bmm(grad_gates.flatten(3).flatten(1, 2).mT, states.flatten(1, 2))
    product.unflatten(1, (4, -1)).mul_(2 * _per_gate(_DROPPED, product, trailing=2))
    forward, backward = product.chunk(2)
    return forward, backward


def _sum_per_row(grad_gates: Tensor, rows: Tensor, *, clients: int, height: int) -> Tensor:
    """Gate gradients summed over every occurrence of a row of the table: [2, C, V, 4H].

    An embedding bag over sorted row numbers takes two thirds of index_add's time, the sorting included; the
    sort is stable so that sums always run in the same order.
    """
    flat = rows.flatten()
    counts = torch.bincount(flat, minlength=2 * clients * (height + 1))
    starts = counts.cumsum(0) - counts
    order = flat.argsort(stable=True)
    summed = torch.embedding_bag(grad_gates.flatten(3).flatten(0, 2), order, starts)[0]
    return summed.view(2, clients, height + 1, -1)[:, :, :height]


def _input_grads(per_row: Tensor, table: Tensor) -> tuple[Tensor, ...]:
    scale = _per_gate(_DROPPED, table, trailing=2)
    return tuple((torch.bmm(each.mT, table).unflatten(1, (4, -1)) * scale).flatten(1, 2) for each in per_row.unbind(0))


def _table_grad(per_row: Tensor, forward: Tensor, backward: Tensor) -> Tensor:
    scale = _per_gate(_DROPPED, per_row, trailing=2)
    weights = [(w.unflatten(1, (4, -1)) * scale).flatten(1, 2) for w in (forward, backward)]
    return torch.bmm(per_row[0], weights[0]).baddbmm_(per_row[1], weights[1])
