"""Losses of a frozen GPT-2 behind learned prefix vectors, with gradients for the prefix alone.

`prefix_losses` computes what `GPT2LMHeadModel` computes on `inputs_embeds` = [prefix, word embeddings of a
text]: the negative log-likelihood of every token given the prefix and the tokens before it. The model has no
dropout and is never trained, so no weight gradient exists and first-order gradients of the prefix are written
out by hand.

    symbol  meaning                                                     shape
    n, L    texts, longest text
    p, d    prefix vectors of a text, width of the model
    S       inputs of one text: p + length - 1, since its last token predicts nothing
    T       rows: the inputs of all texts laid end to end, without padding
    h, e    heads, width of a head (d = h e)
    V       vocabulary

Optimizations, largest gain first (docs/decisions/0003-frozen-gpt2.md has the numbers):

- **No padding.** Every matrix product, normalization and activation runs on the T rows (`row_layout`). Texts are
  sorted by length, and attention batches texts of similar length, padded if that costs less than another batch.
- **Logits are never stored whole.** The head is split into blocks of the vocabulary. A block's logits are computed,
  exponentiated and multiplied by the block again while they are in the cache. This gives the gradient of the
  hidden states before the gradient of the losses is known:

      loss = log sum_v exp(l_v - l_target)      dloss/dhidden = sum_v softmax(l)_v head_v - head_target

  A row's loss depends on nothing else, so the backward pass only scales rows.
- **One sigmoid for GELU and its slope.** gelu(x) = x s with s = sigmoid(u), u = 2c (x + a x^3), c = sqrt(2/pi),
  and its derivative is s + s (1-s) (3u - 4cx): no tanh, and the backward pass is one multiplication.
- **Only what the prefix needs.** The lowest layer's queries, keys and values of the text do not depend on the
  prefix, so its gradients are computed at the p prefix rows only.
- **Chunks of a few hundred rows**, so that activations stay in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from homespun.models.row_layout import AttentionGroup, HeadLayout, RowLayout, lay_out_rows, to_device

# Size of a vocabulary block: its logits for 480 rows take one megabyte.
_BLOCK_WORDS = 512
# Larger sums of exponentials are recomputed with a safe shift. Well below the largest float32.
_LARGEST_SUM = 1e30

_GELU_SCALE = math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715

_layer_norm_backward = torch.ops.aten.native_layer_norm_backward
_softmax_backward = torch.ops.aten._softmax_backward_data.out
_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input  # (grad, y) -> grad * y * (1 - y), in one pass


@dataclass(frozen=True)
class Norm:
    weight: Tensor  # [d]
    bias: Tensor  # [d]
    epsilon: float


@dataclass(frozen=True)
class Linear:
    weight: Tensor  # [in, out], GPT-2's own layout
    bias: Tensor  # [out]


@dataclass(frozen=True)
class Block:
    attention_norm: Norm
    attention_in: Linear  # [d, 3d]: queries, keys, values
    attention_out: Linear  # [d, d]
    mlp_norm: Norm
    mlp_in: Linear  # [d, 4d]
    mlp_out: Linear  # [4d, d]


@dataclass(frozen=True)
class FrozenGpt2:
    """The detached tensors of a GPT-2. They share the model's memory."""

    words: Tensor  # [V, d]
    positions: Tensor  # [positions, d]
    blocks: tuple[Block, ...]
    norm: Norm
    head: Tensor  # [V, d]
    heads: int


def is_plain_gpt2(model: Any) -> bool:
    """Whether `prepare` accepts the model: GPT-2 as published, not a variant, and without an adapter."""
    plain = getattr(model.config, "model_type", "") == "gpt2" and not hasattr(model, "peft_config")
    return plain and not _faults(model.config)


def prepare(model: Any) -> FrozenGpt2:
    """The weights of `model` for `prefix_losses`. Raises ValueError for any other architecture."""
    config, faults = model.config, _faults(model.config)
    if faults:
        raise ValueError(f"not a plain GPT-2: {'; '.join(faults)}")
    return from_tensors(
        dict(model.named_parameters()), heads=config.n_head, layers=config.n_layer, epsilon=config.layer_norm_epsilon
    )


def _faults(config: Any) -> list[str]:
    return [
        f"{name} is {getattr(config, name)!r}, expected {expected}"
        for name, expected, holds in (
            ("activation_function", "'gelu_new'", config.activation_function in ("gelu_new", "gelu_pytorch_tanh")),
            ("scale_attn_weights", True, config.scale_attn_weights),
            ("scale_attn_by_inverse_layer_idx", False, not config.scale_attn_by_inverse_layer_idx),
            ("add_cross_attention", False, not config.add_cross_attention),
        )
        if not holds
    ]


def from_tensors(tensors: Mapping[str, Tensor], *, heads: int, layers: int, epsilon: float = 1e-5) -> FrozenGpt2:
    """The same from tensors with the names of `GPT2LMHeadModel`. Without `lm_head.weight` the head is tied."""

    def take(name: str) -> Tensor:
        return tensors[name].detach().contiguous()

    def norm(name: str) -> Norm:
        return Norm(take(f"{name}.weight"), take(f"{name}.bias"), epsilon)

    def linear(name: str) -> Linear:
        return Linear(take(f"{name}.weight"), take(f"{name}.bias"))

    blocks = tuple(
        Block(
            attention_norm=norm(f"{at}.ln_1"),
            attention_in=linear(f"{at}.attn.c_attn"),
            attention_out=linear(f"{at}.attn.c_proj"),
            mlp_norm=norm(f"{at}.ln_2"),
            mlp_in=linear(f"{at}.mlp.c_fc"),
            mlp_out=linear(f"{at}.mlp.c_proj"),
        )
        for at in (f"transformer.h.{layer}" for layer in range(layers))
    )
    words = take("transformer.wte.weight")
    return FrozenGpt2(
        words=words,
        positions=take("transformer.wpe.weight"),
        blocks=blocks,
        norm=norm("transformer.ln_f"),
        head=take("lm_head.weight") if "lm_head.weight" in tensors else words,
        heads=heads,
    )


def prefix_losses(
    weights: FrozenGpt2, prefix: Tensor, *, tokens: Tensor, lengths: Tensor, starts: Tensor | None = None
) -> Tensor:
    """Losses [n, L] of every token given its text's prefix and the tokens before it; 0 beyond a text's length.

    prefix [n, p, d] with p at least 1; tokens [n, L], where entries beyond a text's length may be any word; lengths [n]
    from 0 to L. Tokens before `starts` [n] are read but not predicted: their losses are 0. Only the prefix gets
    gradients. Until the backward pass every token takes memory, about 45 kB with four layers of width 256, so train few
    clients at a time.
    """
    vectors, longest = prefix.shape[1], int(lengths.max()) if len(lengths) else 0
    if vectors < 1 or vectors + longest - 1 > len(weights.positions):
        raise ValueError(
            f"a prefix of {vectors} vectors and texts of up to {longest} tokens; expected at least 1 vector and, "
            f"without the last token, at most {len(weights.positions)} positions"
        )
    keep = torch.is_grad_enabled() and prefix.requires_grad
    firsts = torch.zeros_like(lengths) if starts is None else starts
    return _PrefixLosses.apply(weights, keep, tokens.long(), lengths.long(), firsts.long(), prefix)


class _PrefixLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weights: FrozenGpt2, keep: bool, tokens: Tensor, lengths: Tensor, starts: Tensor, prefix: Tensor
    ) -> Tensor:
        losses = prefix.new_zeros(tokens.shape)
        # The layout takes many small operations whose results Python needs: computed on the CPU, then moved.
        chunks_on_cpu = lay_out_rows(
            tokens.cpu(), lengths.cpu(), vectors=prefix.shape[1], heads=weights.heads, starts=starts.cpu()
        )
        chunks = [to_device(layout, prefix.device) for layout in chunks_on_cpu]
        saved: list[Tensor] = []
        for layout in chunks:
            of_rows, kept = _forward(weights, layout, prefix=prefix, keep=keep)
            losses.view(-1)[layout.losses] = of_rows
            saved += kept
        if keep:
            ctx.weights, ctx.layouts, ctx.shape = weights, chunks, prefix.shape
            ctx.save_for_backward(*saved)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        out = grad.new_zeros(ctx.shape)
        saved, each = ctx.saved_tensors, _KEPT_AT_THE_HEAD + _KEPT_OF_A_BLOCK * len(ctx.weights.blocks)
        for number, layout in enumerate(ctx.layouts):
            of_rows = grad.reshape(-1)[layout.losses]
            kept = saved[number * each : (number + 1) * each]
            out[layout.texts] = _backward(ctx.weights, layout, grad=of_rows, kept=kept).view(-1, *ctx.shape[1:])
        return None, None, None, None, None, out


def _forward(weights: FrozenGpt2, layout: RowLayout, *, prefix: Tensor, keep: bool) -> tuple[Tensor, list[Tensor]]:
    """Losses [R], and the tensors that `_backward` needs: first the head's, then every block's."""
    inputs = weights.words.index_select(0, layout.words)
    inputs.index_copy_(0, layout.prefix_rows, prefix.index_select(0, layout.texts).flatten(0, 1))
    inputs += weights.positions.index_select(0, layout.positions)
    of_blocks: list[Tensor] = []
    for block in weights.blocks:
        inputs, kept = _block(block, inputs, layout=layout, keep=keep)
        of_blocks += kept
    last = inputs.index_select(0, layout.predicting)
    hidden, mean, deviation = _normalize(last, weights.norm)
    losses, grad = _cross_entropy(hidden, weights.head, targets=layout.targets, keep=keep)
    return losses, [last, mean, deviation, grad, *of_blocks] if keep else []


_KEPT_AT_THE_HEAD = 4
_KEPT_OF_A_BLOCK = 10


def _backward(weights: FrozenGpt2, layout: RowLayout, *, grad: Tensor, kept: Sequence[Tensor]) -> Tensor:
    """Gradient of the prefix rows [m p, d] from the gradient of the losses [R]."""
    last, mean, deviation, of_hidden = kept[:_KEPT_AT_THE_HEAD]
    of_last = _normalize_backward(of_hidden * grad[:, None], last, mean, deviation, norm=weights.norm)
    out = torch.zeros_like(kept[_KEPT_AT_THE_HEAD]).index_copy_(0, layout.predicting, of_last)
    for number in reversed(range(len(weights.blocks))):
        first = _KEPT_AT_THE_HEAD + number * _KEPT_OF_A_BLOCK
        out = _block_backward(
            weights.blocks[number],
            out,
            kept=kept[first : first + _KEPT_OF_A_BLOCK],
            layout=layout,
            lowest=number == 0,
        )
    return out


def _block(block: Block, inputs: Tensor, *, layout: RowLayout, keep: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
    normed, mean, deviation = _normalize(inputs, block.attention_norm)
    qkv = torch.addmm(block.attention_in.bias, normed, block.attention_in.weight)
    mixed, by_head, shares = _attend(qkv, layout.heads)
    middle = torch.add(inputs, block.attention_out.bias).addmm_(mixed, block.attention_out.weight)
    normed, middle_mean, middle_deviation = _normalize(middle, block.mlp_norm)
    active, slope = _gelu(torch.addmm(block.mlp_in.bias, normed, block.mlp_in.weight), keep=keep)
    out = torch.add(middle, block.mlp_out.bias).addmm_(active, block.mlp_out.weight)
    kept = (inputs, mean, deviation, by_head, shares, mixed, middle, middle_mean, middle_deviation, slope)
    return out, kept if keep else ()


def _block_backward(block: Block, grad: Tensor, *, kept: Sequence[Tensor], layout: RowLayout, lowest: bool) -> Tensor:
    """Gradient of a block's inputs [T, d]; for the lowest block, of the prefix rows only [m p, d]."""
    inputs, mean, deviation, by_head, shares, mixed, middle, middle_mean, middle_deviation, slope = kept
    of_active = torch.mm(grad, block.mlp_out.weight.mT).mul_(slope)
    of_normed = torch.mm(of_active, block.mlp_in.weight.mT)
    grad = _normalize_backward(of_normed, middle, middle_mean, middle_deviation, norm=block.mlp_norm).add_(grad)
    of_mixed = torch.mm(grad, block.attention_out.weight.mT)
    if lowest:
        of_qkv = _attend_backward_at_prefix(of_mixed, by_head, shares, mixed=mixed, layout=layout)
        grad, inputs, mean, deviation = (
            each.index_select(0, layout.prefix_rows) for each in (grad, inputs, mean, deviation)
        )
    else:
        of_qkv = _attend_backward(of_mixed, by_head, shares, heads=layout.heads)
    of_normed = torch.mm(of_qkv, block.attention_in.weight.mT)
    return _normalize_backward(of_normed, inputs, mean, deviation, norm=block.attention_norm).add_(grad)


def _normalize(rows: Tensor, norm: Norm) -> tuple[Tensor, Tensor, Tensor]:
    return torch.native_layer_norm(rows, [rows.shape[1]], norm.weight, norm.bias, norm.epsilon)


def _normalize_backward(grad: Tensor, rows: Tensor, mean: Tensor, deviation: Tensor, *, norm: Norm) -> Tensor:
    only_rows = [True, False, False]
    return _layer_norm_backward(grad, rows, [rows.shape[1]], mean, deviation, norm.weight, norm.bias, only_rows)[0]


def _gelu(rows: Tensor, *, keep: bool) -> tuple[Tensor, Tensor]:
    """gelu(rows), and with `keep` its derivative."""
    inner = torch.addcmul(rows.new_tensor(2 * _GELU_SCALE), rows, rows, value=2 * _GELU_SCALE * _GELU_CUBIC)
    inner.mul_(rows)
    if not keep:
        return inner.sigmoid_().mul_(rows), inner
    sigmoid = torch.sigmoid(inner)
    slope = inner.add_(rows, alpha=-4 / 3 * _GELU_SCALE)
    _sigmoid_backward(slope, sigmoid, grad_input=slope)
    torch.add(sigmoid, slope, alpha=3, out=slope)
    return rows.mul_(sigmoid), slope


def _cross_entropy(hidden: Tensor, head: Tensor, *, targets: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """Losses [R], and the gradient of each loss for its row of `hidden` [R, d]."""
    rows_of_targets = head.index_select(0, targets)
    of_targets = (hidden * rows_of_targets).sum(1)
    # Relative to the target's logit no maximum is needed: the sum is at least 1 and rarely large.
    shift = of_targets
    total, grad = _exponentials(hidden, head, shift=shift, keep=keep)
    if bool((total > _LARGEST_SUM).any()):
        shift = torch.stack([torch.mm(hidden, block.mT).amax(1) for block in head.split(_BLOCK_WORDS)]).amax(0)
        total, grad = _exponentials(hidden, head, shift=shift, keep=keep)
    losses = total.log().add_(shift - of_targets).clamp_min_(0)
    return losses, grad.div_(total[:, None]).sub_(rows_of_targets) if keep else grad


def _exponentials(hidden: Tensor, head: Tensor, *, shift: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """sum_v exp(l_v - shift) [R], and with `keep` sum_v exp(l_v - shift) head_v [R, d]."""
    total = torch.zeros_like(shift)
    grad = torch.zeros_like(hidden) if keep else hidden.new_empty(0)
    minus_shift = -shift[:, None]
    buffer = hidden.new_empty(len(hidden) * min(_BLOCK_WORDS, len(head)))
    for block in head.split(_BLOCK_WORDS):
        logits = buffer[: len(hidden) * len(block)].view(len(hidden), len(block))
        torch.addmm(minus_shift, hidden, block.mT, out=logits).exp_()
        total += logits.sum(1)
        if keep:
            grad.addmm_(logits, block)
    return total, grad


def _attend(qkv: Tensor, heads: HeadLayout) -> tuple[Tensor, Tensor, Tensor]:
    """Causal attention within every text: outputs [T, d], inputs by head [3, P, e], attention weights, flat.

    Padding comes after a text, so that no real row sees it.
    """
    by_head = _vectors(qkv, heads.sources_qkv, qkv.shape[1] * len(qkv) // len(heads.places_qkv)).unflatten(0, (3, -1))
    shares = qkv.new_empty(heads.groups[-1].scores.stop)
    mixed = torch.empty_like(by_head[0])
    causal = heads.causal.to(qkv.dtype)
    for group in heads.groups:
        query, key, value = (_of_group(each, group) for each in by_head)
        share = shares[group.scores].view(-1, group.length, group.length)
        own_causal = causal[: group.length, : group.length]
        torch.baddbmm(own_causal, query, key.mT, alpha=query.shape[2] ** -0.5, out=share)
        torch.softmax(share, -1, out=share)
        torch.bmm(share, value, out=_of_group(mixed, group))
    return mixed.index_select(0, heads.places).view(len(qkv), -1), by_head, shares


def _attend_backward(grad: Tensor, by_head: Tensor, shares: Tensor, *, heads: HeadLayout) -> Tensor:
    """Gradient of the queries, keys and values [T, 3d]."""
    of_mixed = _vectors(grad, heads.sources, by_head.shape[2]).index_fill_(0, heads.padding, 0)
    of_qkv = torch.empty_like(by_head)
    for group in heads.groups:
        query, key, value = (_of_group(each, group) for each in by_head)
        of_query, of_key, of_value = (_of_group(each, group) for each in of_qkv)
        share = shares[group.scores].view(-1, group.length, group.length)
        of_own = _of_group(of_mixed, group)
        torch.bmm(share.mT, of_own, out=of_value)
        of_scores = torch.bmm(of_own, value.mT)
        _softmax_backward(of_scores, share, -1, share.dtype, grad_input=of_scores).mul_(query.shape[2] ** -0.5)
        torch.bmm(of_scores, key, out=of_query)
        torch.bmm(of_scores.mT, query, out=of_key)
    return of_qkv.flatten(0, 1).index_select(0, heads.places_qkv).view(len(grad), -1)


def _attend_backward_at_prefix(
    grad: Tensor, by_head: Tensor, shares: Tensor, *, mixed: Tensor, layout: RowLayout
) -> Tensor:
    """The same at the prefix rows only [m p, 3d].

    With P the attention weights on the prefix, O the outputs, dP = dO V^T and dS = P (dP - rowsum(dO O)):
    dV = P^T dO, dK = dS^T Q, and dQ = dS K, where a prefix row sees only prefix rows.
    """
    heads, vectors, width = layout.heads, layout.vectors, by_head.shape[2]
    of_mixed = _vectors(grad, heads.sources, width).index_fill_(0, heads.padding, 0)
    row_sums = (of_mixed * _vectors(mixed, heads.sources, width)).sum(1, keepdim=True)
    of_qkv = []
    for group in heads.groups:
        query, key, value = (_of_group(each, group) for each in by_head)
        key, value = key[:, :vectors], value[:, :vectors]
        share = shares[group.scores].view(-1, group.length, group.length)[:, :, :vectors]
        of_own = _of_group(of_mixed, group)
        of_scores = torch.bmm(of_own, value.mT).sub_(_of_group(row_sums, group)).mul_(share).mul_(width**-0.5)
        of_query = torch.bmm(of_scores[:, :vectors], key)
        of_qkv.append(torch.stack((of_query, torch.bmm(of_scores.mT, query), torch.bmm(share.mT, of_own))))
    by_text = torch.cat(of_qkv, dim=1).unflatten(1, (len(layout.texts), -1))
    return by_text.permute(1, 3, 0, 2, 4).reshape(len(layout.prefix_rows), -1)


def _vectors(rows: Tensor, numbers: Tensor, width: int) -> Tensor:
    return rows.view(-1, width).index_select(0, numbers)


def _of_group(by_head: Tensor, group: AttentionGroup) -> Tensor:
    """The group's part of [P, e] as [m h, S, e]."""
    return by_head[group.places].view(-1, group.length, by_head.shape[1])
