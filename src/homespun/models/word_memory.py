"""What a user typed as a second opinion on the next word: two memories without training.

    p(w) = (1 - weight) p_model(w) + weight p_memory(w)

`cache`: the frequencies of the user's words (order 1), or of words after the last two words, smoothed with those after
the last one and with the frequencies (order 3):

    p_1(w) = c(w) / n      p_2(w) = (c(v, w) + p_1(w)) / (c(v) + 1)      p_3(w) = (c(u, v, w) + p_2(w)) / (c(u, v) + 1)

`neighbours` (kNN-Per, Marfoq et al., 2022): the words that followed where the LSTM's output was nearest,

    p(w) ~ sum over the nearest 32 outputs h_i that w followed, of exp(-|h - h_i|^2 / (scale m)),

with m the mean squared distance of these. A memory is the user's texts as word numbers, private like everything that
begins with `own.`; what it needs of the model is computed from them with the user's copy of the model.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from homespun.models.suggestion_ranks import NOTHING, Ranking
from homespun.models.vocabulary import BEGIN, SPECIAL, UNKNOWN

Memory: TypeAlias = Literal["none", "cache", "neighbours"]
NEAREST = 32
BLOCK = 256  # positions at once


def remembered(logits: Tensor, targets: Tensor, memory: Tensor, *, weight: Tensor, ranking: Ranking) -> Tensor:
    """Losses, ranks and saved letters [positions, 3] of targets [positions], from logits and a memory's probabilities
    [positions, words]."""
    mixed = (1 - weight) * logits.softmax(dim=1) + weight * memory
    losses = -mixed.gather(1, targets.clamp(min=0)[:, None]).log()
    return torch.cat((losses.masked_fill((targets == NOTHING)[:, None], 0.0), ranking(mixed, targets)), dim=1)


def without_words(typed: Tensor, kept: Tensor, *, vocabulary: int, words: int) -> Tensor:
    """Texts [n, T] of a memory after the lexicon of `words` words has lost some: the `kept` places of it have the next
    numbers after the vocabulary, the others are unknown words."""
    numbers = torch.arange(vocabulary + words)
    numbers[vocabulary:] = UNKNOWN
    numbers[vocabulary + kept] = vocabulary + torch.arange(len(kept))
    return numbers[typed]


def contexts_of(targets: Tensor) -> Tensor:
    """The two words before each word of texts [n, T], as [n, T, 2]; BEGIN before the first."""
    begin = torch.full_like(targets[:, :1], BEGIN)
    last = torch.cat((begin, targets[:, :-1]), dim=1)
    return torch.stack((torch.cat((begin, last[:, :-1]), dim=1), last), dim=2)


def cache_probabilities(typed: Tensor, contexts: Tensor, *, order: int, words: int) -> Tensor:
    """p_order [positions, words] after these contexts [positions, 2], from the texts [n, T] that a user typed."""
    before, real = contexts_of(typed), typed >= SPECIAL
    after, before = typed[real], before[real]
    total = max(len(after), 1)
    found = torch.bincount(after, minlength=words).float().expand(len(contexts), words) / total
    if order == 1:
        return found
    same_last = contexts[:, None, 1] == before[None, :, 1]
    for same in (same_last, same_last & (contexts[:, None, 0] == before[None, :, 0])):
        counts = torch.zeros(len(contexts), words).index_add_(1, after, same.float())
        found = (counts + found) / (counts.sum(dim=1, keepdim=True) + 1)
    return found


def neighbour_probabilities(keys: Tensor, after: Tensor, states: Tensor, *, scale: float, words: int) -> Tensor:
    """Probabilities [positions, words] at these states [positions, H], from the states [n, H] of a user's texts and the
    words [n] that followed them."""
    found = torch.zeros(len(states), words)
    if not len(keys):
        return found
    distances, place = torch.cdist(states, keys).square().topk(min(NEAREST, len(keys)), dim=1, largest=False)
    kernel = distances / (scale * distances.mean(dim=1, keepdim=True).clamp(min=torch.finfo(distances.dtype).tiny))
    return found.scatter_add_(1, after[place], (-kernel).softmax(dim=1))
