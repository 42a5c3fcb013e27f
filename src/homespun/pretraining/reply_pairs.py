"""Pairs of a prompt and its reply as arrays of word numbers, for training a reply model on public dialogues."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save
from torch import Tensor

from homespun.core.errors import DataError
from homespun.core.seeds import numpy_generator
from homespun.data.federation import Federation
from homespun.models.reply_model import Direction, Sizes
from homespun.models.vocabulary import PADDING, UNKNOWN, Vocabulary, most_frequent_words, pad_rows
from homespun.system.disk import write_whole


@dataclass(frozen=True)
class Pairs:
    """Word numbers [pairs, words], padded with PADDING, and the number of words of each."""

    question: np.ndarray
    question_length: np.ndarray
    reply: np.ndarray
    length: np.ndarray  # words to predict: one more than the reply's for its end, unless the reply is cut

    def __len__(self) -> int:
        return len(self.length)

    def take(self, rows: np.ndarray) -> Pairs:
        return Pairs(*(getattr(self, one.name)[rows] for one in fields(self)))

    def batch(self, rows: np.ndarray) -> dict[str, Tensor]:
        """A batch of the model `Seq2Seq`."""
        some = self.take(rows)
        return {one.name: torch.from_numpy(getattr(some, one.name).astype(np.int64)) for one in fields(self)}


@dataclass(frozen=True)
class PairCorpus:
    """Pairs to train on and to evaluate with, and their vocabulary."""

    vocabulary: Vocabulary
    train: Pairs
    dev: Pairs
    unknown: float  # share of the replies' words in the training part that are not in the vocabulary
    conversations: int


def encode_pairs(pairs: Iterator[tuple[str, str]], vocabulary: Vocabulary, *, length: int) -> Pairs:
    """Pairs as word numbers, cut at `length` words. A text without a word is one unknown word."""
    sides: tuple[list[list[int]], list[list[int]]] = ([], [])
    for pair in pairs:
        for side, text in zip(sides, pair, strict=True):
            side.append(vocabulary.encode(text) or [UNKNOWN])
    questions, replies = sides
    sizes = np.array([len(one) for one in replies], dtype=np.int64)
    return Pairs(
        question=np.array(pad_rows(questions, length=length), dtype=np.int32).reshape(-1, length),
        question_length=np.minimum([len(one) for one in questions], length).astype(np.int64),
        reply=np.array(pad_rows(replies, length=length), dtype=np.int32).reshape(-1, length),
        length=np.where(sizes > length, length, sizes + 1),
    )


def make_corpus(
    federation: Federation, *, words: int, sizes: Sizes, direction: Direction, dev_share: float, seed: int
) -> PairCorpus:
    """The pairs of all users of a corpus of replies. Whole conversations are held out for evaluation."""
    prompts, replies, conversation = _all_pairs(federation)
    if direction == "prompts":
        prompts, replies = replies, prompts
    names = np.unique(conversation)
    if len(names) < 2:
        raise DataError(f"{federation.name}: one conversation only. Pre-training holds out whole conversations.")
    count = min(max(1, round(dev_share * len(names))), len(names) - 1)
    in_dev = np.isin(conversation, numpy_generator(seed, "dev conversations").permutation(names)[:count])
    train_rows, dev_rows = np.flatnonzero(~in_dev), np.flatnonzero(in_dev)
    # Both directions count both sides, so that a model and its inverse have the same vocabulary.
    texts = (side[row] for row in train_rows for side in (prompts, replies))
    vocabulary = most_frequent_words(texts, size=words)

    def part(rows: np.ndarray) -> Pairs:
        return encode_pairs(((prompts[row], replies[row]) for row in rows), vocabulary, length=sizes.length)

    train = part(train_rows)
    unknown = float((train.reply == UNKNOWN).sum() / max((train.reply != PADDING).sum(), 1))
    return PairCorpus(vocabulary, train, part(dev_rows), unknown, len(names))


def _all_pairs(federation: Federation) -> tuple[list[str], list[str], np.ndarray]:
    prompts: list[str] = []
    replies: list[str] = []
    conversations: list[np.ndarray] = []
    for user in range(len(federation.users)):
        examples = federation.examples(user)
        prompts += [prompt or "" for prompt in examples.prompts or ()]
        replies += examples.texts
        conversations.append(np.asarray(examples.conversations))
    return prompts, replies, np.concatenate(conversations)


def save_corpus(corpus: PairCorpus, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        f"{part}/{one.name}": getattr(getattr(corpus, part), one.name)
        for part in ("train", "dev")
        for one in fields(Pairs)
    }
    facts = {"unknown": np.array(corpus.unknown), "conversations": np.array(corpus.conversations)}
    write_whole(folder / "pairs.safetensors", save({**arrays, **facts}))
    write_whole(folder / "words.txt", corpus.vocabulary.to_lines())


def load_corpus(folder: Path) -> PairCorpus:
    arrays = load_file(folder / "pairs.safetensors")
    train, dev = (Pairs(*(arrays[f"{part}/{one.name}"] for one in fields(Pairs))) for part in ("train", "dev"))
    vocabulary = Vocabulary.from_lines((folder / "words.txt").read_text(encoding="utf-8"))
    return PairCorpus(vocabulary, train, dev, float(arrays["unknown"]), int(arrays["conversations"]))
