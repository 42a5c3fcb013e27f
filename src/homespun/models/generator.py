"""Embedding generators: compute a preference embedding from a user's text without backpropagation.

FedPerC's section 3.2.1 and appendix A: one transformer decoder block whose query is the embedding itself, and
whose keys and values are the word embeddings W of the text,

    e <- MultiHeadAttention(keys W, query LN(e), values W)
    e <- LN(LN(e) + LN(e_before))
    e <- LN(FFN(e) + LN(e_before))

The paper reads an utterance word by word and finds that more text does not help. Here W holds the words of all
evidence utterances at once, and an additional learned key that stands for no evidence: the more words there are, the
smaller its attention weight.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from homespun.core.method import Batch


class EmbeddingGenerator(nn.Module):
    """Before training it returns `start` for any text: the last norm has gain zero and bias `start`."""

    def __init__(self, start: Tensor, *, heads: int) -> None:
        super().__init__()
        width = start.shape[-1]
        self.nothing = nn.Parameter(torch.zeros(width))
        self.attention = nn.MultiheadAttention(width, heads, bias=False, batch_first=True)
        self.before, self.attended, self.joined, self.last = (nn.LayerNorm(width) for _ in range(4))
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        with torch.no_grad():
            self.last.weight.zero_()
            self.last.bias.copy_(start)

    def forward(self, embedding: Tensor, words: Tensor, is_word: Tensor) -> Tensor:
        """embedding [n, p, d], words [n, E, d], is_word [n, E] -> embedding [n, p, d]."""
        before = self.before(embedding)
        attended = attend(self.attention, before, self.nothing, words, is_word=is_word)
        joined = self.joined(self.attended(attended) + before)
        return self.last(self.feed_forward(joined) + before)


def attend(
    attention: nn.MultiheadAttention, query: Tensor, nothing: Tensor, words: Tensor, *, is_word: Tensor
) -> Tensor:
    """`attention` with [nothing, words] as keys and values, computed efficiently for few queries and many words.

    Keys and values are linear in the words. So the key projection is applied to the queries instead of to every word,
    and the value projection after averaging the words instead of before.
    """
    heads = attention.num_heads
    of_query, of_key, of_value = (
        weight.unflatten(0, (heads, -1)) for weight in attention.in_proj_weight.chunk(3)
    )  # [h, e, d] each
    asked = torch.einsum("npd,hed,hec->nphc", query, of_query, of_key) * attention.head_dim**-0.5
    of_words = torch.einsum("nphd,nwd->nphw", asked, words).masked_fill(~is_word[:, None, None], -math.inf)
    weights = torch.cat(((asked @ nothing)[..., None], of_words), dim=-1).softmax(dim=-1)
    seen = weights[..., :1] * nothing + torch.einsum("nphw,nwd->nphd", weights[..., 1:], words)
    values = torch.einsum("nphd,hed->nphe", seen, of_value)
    return values.flatten(-2) @ attention.out_proj.weight.T


def with_evidence(data: Batch, *, counts: tuple[int, ...], words: int) -> Batch:
    """Add to every utterance a random selection of the same user's earlier ones, of sizes that cycle through `counts`.

    `evidence` [n, words] holds their tokens, `evidence_context` the context of each token, -1 for padding.
    """
    tokens, length, context = (data[name].numpy() for name in ("tokens", "length", "context"))
    draw = np.random.default_rng(0)  # the same text always gets the same evidence
    evidence = np.zeros((len(tokens), words), dtype=np.int32)
    evidence_context = np.full((len(tokens), words), -1, dtype=np.int64)
    for row in range(len(tokens)):
        earlier = draw.permutation(row)[: counts[row % len(counts)]]
        said = np.concatenate([tokens[one, : length[one]] for one in earlier] or [tokens[:0, 0]])[:words]
        of = np.repeat(context[earlier], length[earlier])[:words]
        evidence[row, : len(said)], evidence_context[row, : len(of)] = said, of
    return {
        **data,
        "evidence": torch.from_numpy(evidence),
        "evidence_context": torch.from_numpy(evidence_context),
    }
