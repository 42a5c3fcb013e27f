"""Texts as batches of a next-word model, and the own words in them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from homespun.core.words import words
from homespun.models.next_word import LONGEST_SPELLING, NO_BYTE, SPELLED, spell_words
from homespun.models.vocabulary import PADDING, UNKNOWN, Vocabulary


def encode_texts(texts: Sequence[str], vocabulary: Vocabulary, *, length: int, spelled: bool) -> dict[str, Tensor]:
    """Texts as word numbers, cut or padded to `length` words. With `spelled`, the column `spelling` [n, T, bytes] has the bytes
    of the words outside the vocabulary, except those that are too long to be own words."""
    rows = [words(text)[:length] for text in texts]
    index = vocabulary.index
    numbers = torch.full((len(rows), length), PADDING, dtype=torch.int32)
    spelling = torch.full((len(rows), length, SPELLED), NO_BYTE, dtype=torch.uint8)
    for place, row in enumerate(rows):
        numbers[place, : len(row)] = torch.tensor([index.get(word, UNKNOWN) for word in row], dtype=torch.int32)
        own = [(step, word.encode()) for step, word in enumerate(row) if spelled and word not in index]
        own = [(step, spelled_out) for step, spelled_out in own if len(spelled_out) <= LONGEST_SPELLING]
        if own:
            spelling[place, [step for step, _ in own]] = spell_words([one for _, one in own])
    found = {"words": numbers, "length": torch.tensor([max(len(row), 1) for row in rows], dtype=torch.int64)}
    return {**found, "spelling": spelling} if spelled else found


def frequent_own_words(spelling: Tensor, *, at_most: int) -> tuple[Tensor, Tensor]:
    """The most frequent words [words, bytes] of a column `spelling`, ties in the order of their bytes, and how often
    each occurs."""
    rows = spelling.flatten(0, -2)
    rows, counts = torch.unique(rows[rows[:, 0] != NO_BYTE], dim=0, return_counts=True)
    order = torch.argsort(-counts, stable=True)[:at_most]
    return rows[order], counts[order]
