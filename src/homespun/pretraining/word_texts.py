"""Texts as arrays of word numbers, for training a next-word model on public prose."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save
from torch import Tensor

from homespun.core.errors import DataError
from homespun.core.seeds import numpy_generator
from homespun.data.federation import Federation
from homespun.models.vocabulary import PADDING, UNKNOWN, Vocabulary, pad_rows
from homespun.system.disk import write_whole


@dataclass(frozen=True)
class Pieces:
    """Word numbers [pieces, words] of texts that were cut into pieces, padded with PADDING."""

    words: np.ndarray

    def __len__(self) -> int:
        return len(self.words)

    def batch(self, rows: np.ndarray) -> dict[str, Tensor]:
        """A batch of the model `NextWord`, without columns in which all rows are padding."""
        some = self.words[rows]
        length = (some != PADDING).sum(axis=1)
        return {"words": torch.from_numpy(some[:, : length.max()].astype(np.int64)), "length": torch.from_numpy(length)}


@dataclass(frozen=True)
class WordCorpus:
    """Pieces to train on and to evaluate with, and their vocabulary."""

    vocabulary: Vocabulary
    train: Pieces
    dev: Pieces

    @property
    def unknown(self) -> float:
        """Share of the words in the training part that are not in the vocabulary."""
        return float((self.train.words == UNKNOWN).sum() / max((self.train.words != PADDING).sum(), 1))


def cut_texts(texts: Iterable[str], vocabulary: Vocabulary, *, length: int) -> Pieces:
    """Texts as word numbers, in pieces of at most `length` words."""
    rows = []
    for text in texts:
        numbers = vocabulary.encode(text)
        rows += [numbers[start : start + length] for start in range(0, len(numbers), length)]
    return Pieces(np.array(pad_rows(rows, length=length), dtype=np.int32).reshape(-1, length))


def make_corpus(
    federation: Federation, vocabulary: Vocabulary, *, length: int, dev_share: float, seed: int
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
    train, dev = (cut_texts(part, vocabulary, length=length) for part in parts)
    if not len(train) or not len(dev):
        raise DataError(f"{federation.name}: no words to train on, or none in the held-out part.")
    return WordCorpus(vocabulary, train, dev)


def save_corpus(corpus: WordCorpus, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "pieces.safetensors", save({"train": corpus.train.words, "dev": corpus.dev.words}))
    write_whole(folder / "words.txt", corpus.vocabulary.to_lines())


def load_corpus(folder: Path) -> WordCorpus:
    arrays = load_file(folder / "pieces.safetensors")
    vocabulary = Vocabulary.from_lines((folder / "words.txt").read_text(encoding="utf-8"))
    return WordCorpus(vocabulary, Pieces(arrays["train"]), Pieces(arrays["dev"]))
