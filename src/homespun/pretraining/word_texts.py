"""Texts as arrays of word numbers, for training a next-word model on public prose."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from safetensors.numpy import load_file, save
from torch import Tensor

from homespun.core.errors import DataError
from homespun.core.seeds import numpy_generator
from homespun.core.words import words
from homespun.data.federation import Federation
from homespun.models.next_word import LONGEST_SPELLING
from homespun.models.subwords import Subwords
from homespun.models.vocabulary import PADDING, UNKNOWN, Vocabulary, pad_rows
from homespun.system.disk import write_whole

T = TypeVar("T")
SUBWORDS = "subwords.json"
SUBWORDS_PER_WORD = 2  # at most, in a piece of text


@dataclass(frozen=True)
class Pieces:
    """Word numbers [pieces, words] of texts that were cut into pieces, padded with PADDING; for a model of sub-words
    also the numbers of those."""

    words: np.ndarray
    subwords: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.words)

    def batch(self, rows: np.ndarray) -> dict[str, Tensor]:
        """A batch of the model `NextWord` or `NextSubword`, without columns in which all rows are padding."""
        found = dict(zip(("words", "length"), _without_padding(self.words[rows]), strict=True))
        if self.subwords is None:
            return found
        return found | dict(zip(("pieces", "piece_count"), _without_padding(self.subwords[rows]), strict=True))


def _without_padding(rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """Rows without columns in which all are padding, and the length of each."""
    length = (rows != PADDING).sum(axis=1)
    return torch.from_numpy(rows[:, : length.max()].astype(np.int64)), torch.from_numpy(length)


@dataclass(frozen=True)
class WordCorpus:
    """Pieces to train on and to evaluate with, their vocabulary and, for a model of those, sub-words."""

    vocabulary: Vocabulary
    train: Pieces
    dev: Pieces
    subwords: Subwords | None = None

    @property
    def unknown(self) -> float:
        """Share of the words in the training part that are not in the vocabulary."""
        return _share(self.train.words, UNKNOWN)

    @property
    def unspelled(self) -> float:
        """Share of the sub-words in the training part that stand for a word without sub-words."""
        return 0.0 if self.train.subwords is None else _share(self.train.subwords, UNKNOWN)


def _share(numbers: np.ndarray, one: int) -> float:
    return float((numbers == one).sum() / max((numbers != PADDING).sum(), 1))


def cut_texts(texts: Iterable[str], vocabulary: Vocabulary, *, length: int, subwords: Subwords | None = None) -> Pieces:
    """Texts as word numbers, in pieces of at most `length` words and SUBWORDS_PER_WORD * `length` sub-words."""
    if subwords is None:
        rows = [row for text in texts for row in _cut(vocabulary.encode(text), length)]
        return Pieces(_padded(rows, length=length))
    index, most = vocabulary.index, max(SUBWORDS_PER_WORD * length, LONGEST_SPELLING)
    of_words, of_subwords = [], []
    for text in texts:
        for some in _cut(words(text), length):
            for row in cut_by_size(some, [len(subwords.split(word)) for word in some], most=most):
                of_words.append([index.get(word, UNKNOWN) for word in row])
                of_subwords.append([number for word in row for number in subwords.split(word)])
    return Pieces(_padded(of_words, length=length), _padded(of_subwords, length=most))


def _cut(values: Sequence[T], length: int) -> Iterator[Sequence[T]]:
    return (values[start : start + length] for start in range(0, len(values), length))


def cut_by_size(values: Sequence[T], sizes: Sequence[int], *, most: int) -> list[Sequence[T]]:
    """Values in parts whose sizes add up to at most this, if no single one is larger."""
    starts, total = [0] if values else [], 0
    for place, size in enumerate(sizes):
        if total and total + size > most:
            starts.append(place)
            total = 0
        total += size
    return [values[start:end] for start, end in pairwise([*starts, len(values)])]


def _padded(rows: Sequence[Sequence[int]], *, length: int) -> np.ndarray:
    return np.array(pad_rows(rows, length=length), dtype=np.int32).reshape(-1, length)


def make_corpus(
    federation: Federation,
    vocabulary: Vocabulary,
    *,
    length: int,
    dev_share: float,
    seed: int,
    subwords: Subwords | None = None,
) -> WordCorpus:
    """The texts of a corpus, some users (articles, authors) held out for evaluation."""
    users = len(federation.users)
    if users < 2:
        raise DataError(
            f"{federation.name}: all texts are one user's. Pre-training holds out whole users: name the column of "
            "authors, articles or documents with --user-column."
        )
    held_out = numpy_generator(seed, "dev users").permutation(users)[: min(max(1, round(dev_share * users)), users - 1)]
    parts: tuple[list[str], list[str]] = ([], [])
    in_dev = set(held_out.tolist())
    for user in range(users):
        parts[user in in_dev].extend(federation.examples(user).texts)
    train, dev = (cut_texts(part, vocabulary, length=length, subwords=subwords) for part in parts)
    if not len(train) or not len(dev):
        raise DataError(f"{federation.name}: no words to train on, or none in the held-out part.")
    return WordCorpus(vocabulary, train, dev, subwords)


def save_corpus(corpus: WordCorpus, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {"train": corpus.train.words, "dev": corpus.dev.words}
    if corpus.subwords is not None:
        subwords = {"train_subwords": corpus.train.subwords, "dev_subwords": corpus.dev.subwords}
        arrays |= {name: one for name, one in subwords.items() if one is not None}
        write_whole(folder / SUBWORDS, json.dumps(corpus.subwords.to_config()))
    write_whole(folder / "pieces.safetensors", save(arrays))
    write_whole(folder / "words.txt", corpus.vocabulary.to_lines())


def load_corpus(folder: Path) -> WordCorpus:
    arrays = load_file(folder / "pieces.safetensors")
    vocabulary = Vocabulary.from_lines((folder / "words.txt").read_text(encoding="utf-8"))
    train, dev = (Pieces(arrays[name], arrays.get(f"{name}_subwords")) for name in ("train", "dev"))
    if not (folder / SUBWORDS).exists():
        return WordCorpus(vocabulary, train, dev)
    config = json.loads((folder / SUBWORDS).read_text(encoding="utf-8"))
    return WordCorpus(vocabulary, train, dev, Subwords.from_config(config))
