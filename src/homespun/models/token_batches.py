"""Encodes utterances as batches of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import numpy as np
import torch
from pydantic import Field

from homespun.core.errors import SettingsError
from homespun.core.method import Batch, Window
from homespun.models.pretrained import Pretrained

PROMPT = 3  # first tokens of an utterance, which are given; the others are scored
SHORTEST = PROMPT + 1  # an utterance needs at least one token to score
# Defaults of language runs. After training every user adapts to several numbers of samples, which takes seconds each
# time; with all users and all their utterances the final evaluation could take longer than the training.
EVALUATION_DEFAULTS = {"evaluate_users": 25, "evaluate_examples": 25}
UtteranceLength: TypeAlias = Annotated[int, Field(ge=SHORTEST)]


def encode(
    texts: Sequence[str], contexts: np.ndarray | None, pretrained: Pretrained, *, length: int, prefix: int
) -> Batch:
    """Encode utterances of at least four tokens, truncated to `length`; shorter ones are left out."""
    if length + prefix > pretrained.positions:
        raise SettingsError(
            f"length: {length} tokens and {prefix} before them exceed the {pretrained.positions} positions of "
            f"{pretrained.name}. Use at most {pretrained.positions - prefix}."
        )
    ids = _tokens(texts, pretrained)
    kept = [row for row, some in enumerate(ids) if len(some) >= SHORTEST]
    longest = max((min(len(ids[row]), length) for row in kept), default=SHORTEST)
    tokens = np.zeros((len(kept), longest), dtype=np.int32)
    for place, row in enumerate(kept):
        some = ids[row][:length]
        tokens[place, : len(some)] = some
    contexts = np.zeros(len(texts)) if contexts is None else contexts
    return {
        "tokens": torch.from_numpy(tokens),
        "length": torch.tensor([min(len(ids[row]), length) for row in kept], dtype=torch.int64),
        "context": torch.from_numpy(np.asarray(contexts, dtype=np.int64)[kept]),
    }


def token_window(pretrained: Pretrained, length: int) -> Window:
    """The window of a method that reads at most `length` tokens of an utterance."""
    return Window(
        "length", length, unit="tokens", sizes=lambda texts: [len(some) for some in _tokens(texts, pretrained)]
    )


def _tokens(texts: Sequence[str], pretrained: Pretrained) -> list[list[int]]:
    return pretrained.tokenizer(list(texts), add_special_tokens=False)["input_ids"] if len(texts) else []
