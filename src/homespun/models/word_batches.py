"""Texts as batches of a next-word model, and the own words in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from homespun.core.words import words
from homespun.models.next_word import LONGEST_SPELLING, NO_BYTE, SPELLED, spell_words
from homespun.models.vocabulary import PADDING, UNKNOWN, Vocabulary, pad_rows


def encode_texts(texts: Sequence[str], vocabulary: Vocabulary, *, length: int, spelled: bool) -> dict[str, Tensor]:
    """Texts as word numbers, cut or padded to `length` words, and how many letters each word has. With `spelled`, the
    column `spelling` [n, T, bytes] has the bytes of the words outside the vocabulary, except those that are too long
    to be own words."""
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
    letters = torch.tensor(pad_rows([[min(len(word), 255) for word in row] for row in rows], length=length))
    found = {
        "words": numbers,
        "length": torch.tensor([max(len(row), 1) for row in rows], dtype=torch.int64),
        "letters": letters.view(-1, length).to(torch.uint8),
    }
    return {**found, "spelling": spelling} if spelled else found


def own_words_of(texts: Sequence[str], vocabulary: Vocabulary, *, length: int) -> Counter[str]:
    """How often each word occurs that the vocabulary does not have, among the first `length` words of each text."""
    index = vocabulary.index
    found = Counter(word for text in texts for word in words(text)[:length] if word not in index)
    return Counter({word: count for word, count in found.items() if len(word.encode()) <= LONGEST_SPELLING})


def spell_elsewhere(part: Sequence[str], whole: Sequence[str], vocabulary: Vocabulary, *, length: int) -> Tensor:
    """A column [n, K, bytes] with the own words of a user's texts that are not in this part of them, as often as they
    occur there, in no relation to its rows."""
    elsewhere = own_words_of(whole, vocabulary, length=length) - own_words_of(part, vocabulary, length=length)
    spelled = spell_words([word.encode() for word in sorted(elsewhere.elements())])
    rows = len(part)
    each = -(-len(spelled) // rows) if rows else 0
    found = torch.full((rows * each, SPELLED), NO_BYTE, dtype=torch.uint8)
    found[: len(spelled)] = spelled[: rows * each]
    return found.view(rows, each, SPELLED)


def frequent_own_words(columns: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The words [words, bytes] in columns [..., bytes], most frequent first and ties in the order of their bytes, and
    how often each occurs."""
    rows = torch.cat([one.flatten(0, -2) for one in columns])
    rows, counts = torch.unique(rows[rows[:, 0] != NO_BYTE], dim=0, return_counts=True)
    order = torch.argsort(-counts, stable=True)
    return rows[order], counts[order]
