"""Token losses of utterances with the user's own text in the language model's context.

The text is read once; its key-value cache is reused for every utterance:

    [start, own words ...] | utterance 1
                           | utterance 2 ...

In a batch of replies, an utterance is a question with its reply, and the losses are those of the reply.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from homespun.models.losses import logits_at
from homespun.models.token_batches import join_questions, select_replies

ROWS = 8  # utterances in a batch; each has a copy of the cache


@torch.no_grad()
def in_context_losses(model: Any, before: Sequence[int], batch: Mapping[str, Tensor]) -> Tensor:
    """-log p(token | before, tokens before it) [n, L], zero beyond an utterance's length."""
    tokens, length, start = join_questions(batch)
    if not len(tokens):
        return torch.zeros(batch["tokens"].shape, device=tokens.device)
    real = torch.arange(tokens.shape[1], device=tokens.device) < length[:, None]
    read = model(input_ids=torch.tensor([list(before)], device=tokens.device), use_cache=True, logits_to_keep=1)
    # The first token that is predicted. Its logits are those of the context if no question precedes it.
    first = 0 if start is None else int(start.min())
    predicting = torch.arange(max(first - 1, 0), tokens.shape[1] - 1, device=tokens.device)
    losses = []
    for some in tokens.split(ROWS):
        remembered = copy.deepcopy(read.past_key_values)
        remembered.batch_repeat_interleave(len(some))
        expected = logits_at(model, predicting, input_ids=some[:, :-1], past_key_values=remembered)
        if not first:
            expected = torch.cat((read.logits[:, -1:].expand(len(some), -1, -1), expected), dim=1)
        found = functional.cross_entropy(expected.flatten(0, 1), some[:, first:].flatten(), reduction="none")
        losses.append(functional.pad(found.view(len(some), -1), (first, 0)))
    return select_replies(torch.cat(losses).masked_fill(~real, 0), batch)


def join_sentences(sentences: Sequence[Sequence[int]], *, start: int, between: Sequence[int], room: int) -> list[int]:
    """`start` and the sentences, each followed by `between`. Drops the first sentences if they exceed `room`."""
    kept: list[int] = []
    for sentence in reversed(sentences):
        if 1 + len(sentence) + len(between) + len(kept) > room:
            break
        kept = [*sentence, *between, *kept]
    return [start, *kept]
