"""Token losses of utterances with the user's own text in the language model's context.

The text is read once; its key-value cache is reused for every utterance:

    [start, own words ...] | utterance 1
                           | utterance 2 ...
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

ROWS = 8  # utterances in a batch; each has a copy of the cache


@torch.no_grad()
def in_context_losses(model: Any, before: Sequence[int], batch: Mapping[str, Tensor]) -> Tensor:
    """-log p(token | before, tokens before it) [n, L], zero beyond an utterance's length."""
    tokens, length = batch["tokens"].long(), batch["length"]
    if not len(tokens):
        return torch.zeros(tokens.shape, device=tokens.device)
    real = torch.arange(tokens.shape[1], device=tokens.device) < length[:, None]
    read = model(input_ids=torch.tensor([list(before)], device=tokens.device), use_cache=True, logits_to_keep=1)
    losses = []
    for some in tokens.split(ROWS):
        remembered = copy.deepcopy(read.past_key_values)
        remembered.batch_repeat_interleave(len(some))
        following = model(input_ids=some[:, :-1], past_key_values=remembered).logits
        expected = torch.cat((read.logits[:, -1:].expand(len(some), -1, -1), following), dim=1)
        found = functional.cross_entropy(expected.flatten(0, 1), some.flatten(), reduction="none")
        losses.append(found.view_as(some))
    return torch.cat(losses).masked_fill(~real, 0)


def join_sentences(sentences: Sequence[Sequence[int]], *, start: int, between: Sequence[int], room: int) -> list[int]:
    """`start` and the sentences, each followed by `between`. Drops the first sentences if they exceed `room`."""
    kept: list[int] = []
    for sentence in reversed(sentences):
        if 1 + len(sentence) + len(between) + len(kept) > room:
            break
        kept = [*sentence, *between, *kept]
    return [start, *kept]
