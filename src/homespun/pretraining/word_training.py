"""Trains a next-word model centrally: the first stage of OOV Expansion.

Sequences are packed: no step is computed for padding. Each different word of a block is spelled out once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from homespun.core.settings import Paper
from homespun.evaluation.next_words import count_hits
from homespun.models.next_word import NextWord
from homespun.models.next_word_model import NextWordSizes, untrained
from homespun.pretraining.central import CentralSettings, Scores, perplexity
from homespun.pretraining.word_texts import Pieces, WordCorpus

ROWS = 128  # pieces computed at once; a batch is several of them
RANKED = 1000  # held-out pieces at most with which a model of sub-words is evaluated: ranking takes long


class NextWordPretrainSettings(CentralSettings):
    """How a next-word model is pre-trained."""

    words: Annotated[PositiveInt, Paper(5000)] = 5000
    """Words of the vocabulary: the most frequent ones."""
    subwords: bool = False
    """Predict byte-pair pieces of words, as many as the vocabulary has words: a control that has no unknown words."""
    sizes: NextWordSizes = NextWordSizes()
    """The network's size."""
    length: PositiveInt = 30
    """Words of a piece: longer texts are cut into several."""
    epochs: Annotated[PositiveInt, Paper(100)] = 3
    """Passes over the training texts."""
    batch: Annotated[PositiveInt, Paper(32)] = 128
    """Pieces in a step."""
    lr: Annotated[PositiveFloat, Paper(1e-4)] = 0.002
    """Learning rate of Adam at the first step; it falls linearly to `final_lr` of this."""
    dev_share: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """Share of the users or articles that are held out for evaluation."""


@dataclass(frozen=True)
class NextWordObjective:
    corpus: WordCorpus
    settings: NextWordPretrainSettings

    @property
    def examples(self) -> int:
        return len(self.corpus.train)

    def build(self) -> NextWord:
        return untrained(self.corpus.vocabulary, self.settings.sizes, self.corpus.subwords).build()

    @property
    def evaluated(self) -> np.ndarray:
        """The held-out pieces that scores are of: all, or evenly spaced ones."""
        pieces = len(self.corpus.dev)
        most = pieces if self.corpus.subwords is None else min(pieces, RANKED)
        return np.arange(most) * pieces // most

    def losses(self, network: nn.Module, rows: np.ndarray, *, step: int) -> Iterator[Tensor]:
        """The mean loss per word of these pieces, in blocks."""
        assert isinstance(network, NextWord)
        pieces, parameters = self.corpus.train, {name: value[None] for name, value in network.named_parameters()}
        words = int(pieces.batch(rows)["length"].sum())
        for start in range(0, len(rows), ROWS):
            batch = {name: one[None] for name, one in pieces.batch(rows[start : start + ROWS]).items()}
            yield network.stacked(parameters, batch)[..., 0].sum() / words

    def evaluate(self, network: nn.Module, *, epoch: int) -> Scores:
        assert isinstance(network, NextWord)
        return evaluate_network(network, self.corpus.dev, self.evaluated, epoch=epoch)

    def best(self, history: Sequence[Scores]) -> Scores:
        """The epoch of the highest EMR3; of several equal ones, the first."""
        return max(history, key=lambda one: -math.inf if math.isnan(one["perplexity"]) else one["emr3"])


@torch.no_grad()
def evaluate_network(network: NextWord, pieces: Pieces, evaluated: np.ndarray, *, epoch: int) -> Scores:
    """Perplexity per word, and how often the next word is among the three likeliest."""
    parameters = {name: value.detach()[None] for name, value in network.named_parameters()}
    loss, words, hits = 0.0, 0, 0
    for start in range(0, len(evaluated), ROWS):
        batch = pieces.batch(evaluated[start : start + ROWS])
        output = network.stacked(parameters, {name: one[None] for name, one in batch.items()})[0]
        counts = count_hits(batch, output)
        loss, words, hits = loss + float(counts["loss"]), words + int(counts["words"]), hits + int(counts["hits"])
    return {"epoch": epoch, "perplexity": perplexity(loss / words), "emr3": hits / words}
