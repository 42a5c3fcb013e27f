"""Exaggerates what a condition changes: classifier-free guidance of a language model (Sanchez et al., 2023).

The logits of two conditions of one model, here a user's persona and a neutral one, are joined before the softmax:

    neutral + strength (own - neutral)

A strength of 1 is the model itself, 0 ignores the persona, and larger values move further in the direction in which the
persona moves the model. The result is again a distribution over words, so that every search can use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from homespun.decoding.protocol import Decoder, State


class ReplyingDecoder(Decoder, Protocol):
    """A decoder whose rows may have different personas."""

    def start(self, inputs: Sequence[Sequence[int]], personas: Tensor | None = None, /) -> State: ...


@dataclass(frozen=True)
class GuidedDecoder:
    """A decoder that exaggerates personas. A row's state is its own, then that of the neutral persona."""

    decoder: ReplyingDecoder
    neutral: Tensor  # the persona to move away from
    strength: float

    @property
    def begin(self) -> int:
        return self.decoder.begin

    @property
    def end(self) -> int:
        return self.decoder.end

    @property
    def vocabulary(self) -> int:
        return self.decoder.vocabulary

    @property
    def banned(self) -> tuple[int, ...]:
        return self.decoder.banned

    def start(self, inputs: Sequence[Sequence[int]], personas: Tensor | None = None, /) -> State:
        neutral = self.neutral.expand(len(inputs), *self.neutral.shape)
        return (*self.decoder.start(inputs, personas), *self.decoder.start(inputs, neutral))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        half = len(state) // 2
        own, own_state = self.decoder.step(tokens, state[:half])
        neutral, neutral_state = self.decoder.step(tokens, state[half:])
        return neutral + self.strength * (own - neutral), (*own_state, *neutral_state)
