"""What search and sampling need to know of a model that writes a sequence word by word.

    state = decoder.start(questions)
    replies = beam_search(decoder, state, beam=200, max_length=20)

A search calls `step` with many rows at once: all unfinished hypotheses of several questions. It selects and repeats the
rows of the state that `step` returns, and changes neither the state nor the logits.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

import torch
from torch import Tensor

from homespun.core.errors import HomespunError, InputError, SettingsError, raise_faults

State = tuple[Tensor, ...]
"""What a decoder remembers of each row: tensors with a leading row axis."""


class Decoder(Protocol):
    """A model that gives the logits of the next word, one step at a time."""

    @property
    def begin(self) -> int:
        """The word that the first step reads."""

    @property
    def end(self) -> int:
        """The word that ends a sequence."""

    @property
    def vocabulary(self) -> int:
        """The number of words, `begin` and `end` included."""

    @property
    def banned(self) -> tuple[int, ...]:
        """Words that are never generated, such as padding, the unknown word and `begin`.

        They keep their probability: that of the other words is not scaled up, so that a sequence's log probability is
        the model's own.
        """

    def start(self, inputs: Any) -> State:
        """The state before the first word, one row per question or prompt."""

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one word per row (int64 [rows]); return float32 logits [rows, vocabulary] and the new state.

        With several threads, they call it at the same time: it must not change the decoder.
        """


def count_questions(state: State) -> int:
    """The number of rows of a state."""
    if not state or any(part.dim() == 0 or len(part) != len(state[0]) for part in state):
        shapes = ", ".join(str(tuple(part.shape)) for part in state) or "no tensors"
        raise InputError(f"state: expected tensors with one row per question, found {shapes}. Use `decoder.start`.")
    return len(state[0])


def select_rows(state: State, rows: Tensor | slice) -> State:
    """Some rows of a state."""
    return tuple(part[rows] for part in state)


def join_rows(states: list[State]) -> State:
    """The rows of several states, one after the other."""
    return states[0] if len(states) == 1 else tuple(torch.cat(parts) for parts in zip(*states, strict=True))


class Scratch(threading.local):
    """Memory for log probabilities, one tensor per thread: getting new memory takes as long as the softmax."""

    def __init__(self) -> None:
        self.memory = torch.empty(0)

    def take(self, like: Tensor) -> Tensor:
        """A float32 tensor of this shape and device, which the thread's next call returns again."""
        if self.memory.numel() < like.numel() or self.memory.device != like.device:
            self.memory = torch.empty(like.numel(), device=like.device)
        return self.memory[: like.numel()].view(like.shape)


def word_log_probs(decoder: Decoder, logits: Tensor, scratch: Scratch) -> Tensor:
    """Log probabilities [rows, vocabulary] of the next word, in the scratch memory."""
    found = torch.log_softmax(logits.detach().float(), dim=1, out=scratch.take(logits))
    if bool(found[:, decoder.end].isnan().any()):  # one NaN or +inf makes the whole row NaN
        raise HomespunError(
            "the decoder's logits are NaN or infinite. Its parameters diverged in training: lower the learning rate, "
            "or load an earlier round."
        )
    return found


def check_words(decoder: Decoder) -> list[str]:
    """The faults of a decoder's special words."""
    words = {"begin": decoder.begin, "end": decoder.end, **{f"banned word {one}": one for one in decoder.banned}}
    faults = [
        f"{name} is {word}, expected a word below the vocabulary of {decoder.vocabulary}."
        for name, word in words.items()
        if not 0 <= word < decoder.vocabulary
    ]
    if decoder.end in decoder.banned:
        faults.append(f"the end word {decoder.end} is banned, so that no sequence ends. Take it out of `banned`.")
    return faults


def check_lengths(*, min_length: int, max_length: int) -> list[str]:
    """The faults of the limits of a sequence's number of words."""
    if max_length < 1:
        return [f"max_length is {max_length}, expected at least 1."]
    if not 0 <= min_length <= max_length:
        return [f"min_length is {min_length}, expected 0 to max_length = {max_length}."]
    return []


def require(where: str, faults: list[str]) -> None:
    """Raise a `SettingsError` that lists all faults, if there are any."""
    if faults:
        raise_faults(SettingsError, where, faults)
