"""Embedding generators: a preference embedding read off somebody's text, without backpropagation.

FedPerC's section 3.2.1 and appendix A: one transformer decoder block whose query is the embedding itself, and
whose keys and values are the word embeddings W of the text,

    e <- MultiHeadAttention(keys W, query LN(e), values W)
    e <- LN(LN(e) + LN(e_before))
    e <- LN(FFN(e) + LN(e_before))

The paper goes through an utterance word by word and finds that more text does not help. Here W holds all the
evidence at once, however many utterances it comes from, and one more key that stands for having seen nothing:
the more words there are, the less that key weighs.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from homespun.core.method import Batch


class EmbeddingGenerator(nn.Module):
    """Starts by giving back `start`, whatever it reads: the last norm's gain is zero and its bias is `start`."""

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
        words = torch.cat((self.nothing.expand(len(words), 1, -1), words), dim=1)
        ignored = torch.cat((is_word.new_zeros(len(is_word), 1), ~is_word), dim=1)
        attended, _ = self.attention(before, words, words, key_padding_mask=ignored, need_weights=False)
        joined = self.joined(self.attended(attended) + before)
        return self.last(self.feed_forward(joined) + before)


def with_evidence(data: Batch, *, counts: tuple[int, ...], words: int) -> Batch:
    """Give every utterance some of the same person's earlier ones: `evidence` [n, words], as many as `counts` say
    in turn, at random; `evidence_context` names each word's context, -1 where there is no word."""
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
