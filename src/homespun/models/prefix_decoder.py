"""A language model with a learned prefix as a step-wise decoder of replies (package `decoding`).

    prefix, question | separator, reply ...

`start` reads prefix and question; the first step reads the separator. The state of a row is its keys and values and
which of them are real: questions have different lengths, and padding is between prefix and question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

DecoderState = tuple[Tensor, ...]  # which places are real [rows, S], then keys and values of each layer


@dataclass(frozen=True)
class PrefixDecoder:
    """The decoder of one language model."""

    backbone: Any
    separator: int
    banned: tuple[int, ...] = ()

    @property
    def begin(self) -> int:
        return self.separator

    @property
    def end(self) -> int:
        return self.separator

    @property
    def vocabulary(self) -> int:
        return len(self.backbone.get_input_embeddings().weight)

    @torch.no_grad()
    def start(self, questions: Sequence[Sequence[int]], personas: Tensor | None = None) -> DecoderState:
        """The state after reading these questions, one row each, behind prefixes [rows, vectors, width]."""
        assert personas is not None
        vectors, longest = personas.shape[1], max(map(len, questions))
        tokens = torch.zeros(len(questions), longest, dtype=torch.int64)
        real = torch.zeros(len(questions), longest, dtype=torch.bool)
        for row, one in enumerate(questions):
            tokens[row, longest - len(one) :] = torch.tensor(list(one), dtype=torch.int64)
            real[row, longest - len(one) :] = True
        real = torch.cat((real.new_ones(len(questions), vectors), real), dim=1)
        read = self.backbone(
            inputs_embeds=torch.cat((personas, self.backbone.get_input_embeddings()(tokens)), dim=1),
            attention_mask=real.long(),
            position_ids=_positions(real),
            use_cache=True,
            logits_to_keep=1,
        )
        return (real, *_keys_and_values(read.past_key_values))

    @torch.no_grad()
    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Logits [rows, vocabulary] of the token after `tokens` [rows], and the state that follows."""
        from transformers import DynamicCache

        real, *layers = state
        real = torch.cat((real, real.new_ones(len(real), 1)), dim=1)
        read = self.backbone(
            input_ids=tokens[:, None],
            attention_mask=real.long(),
            position_ids=_positions(real)[:, -1:],
            past_key_values=DynamicCache(list(zip(layers[::2], layers[1::2], strict=True))),
            use_cache=True,
        )
        return read.logits[:, -1], (real, *_keys_and_values(read.past_key_values))


def _positions(real: Tensor) -> Tensor:
    """The position of each real place; that of padding is any."""
    return (real.cumsum(dim=1) - 1).clamp_min(0)


def _keys_and_values(cache: Any) -> list[Tensor]:
    return [part for layer in cache.layers for part in (layer.keys, layer.values)]
