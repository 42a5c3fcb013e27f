"""Trains a reply model centrally: stage 1 of FedNLG.

Sequences are packed: no step is computed for padding, and no logit where there is no word to predict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from homespun.core import draws
from homespun.core.settings import Paper
from homespun.decoding.sampling import greedy
from homespun.evaluation.bleu import bleu_counts, corpus_bleu
from homespun.models.reply_decoder import ReplyDecoder
from homespun.models.reply_model import Sizes, untrained
from homespun.models.seq2seq import Seq2Seq
from homespun.models.vocabulary import PADDING, SPECIAL
from homespun.pretraining.central import CentralSettings, Scores, perplexity
from homespun.pretraining.reply_pairs import PairCorpus

ROWS = 256  # pairs computed at once; a batch is several of them


class ReplyPretrainSettings(CentralSettings):
    """How a reply model is pre-trained."""

    words: Annotated[int, Field(gt=SPECIAL), Paper("at most 30,000")] = 30_000
    """Size of the vocabulary: the most frequent words of the training part, and four numbers for padding, begin, end
    and unknown words."""
    sizes: Sizes = Sizes()
    """The network's size."""
    epochs: Annotated[PositiveInt, Paper(60)] = 10
    """Passes over the training pairs."""
    batch: Annotated[PositiveInt, Paper(1024)] = 256
    """Pairs in a step."""
    lr: Annotated[PositiveFloat, Paper(0.01)] = 0.003
    """Learning rate of Adam at the first step; it falls linearly to `final_lr` of this."""
    clip_norm: Annotated[PositiveFloat, Paper(5)] = 5.0
    """Maximum L2 norm of a step's gradient."""
    dropout: Annotated[float, Field(ge=0, lt=1), Paper(0.2)] = 0.2
    """Share of the inputs of each layer that dropout sets to zero."""
    choose_by: Annotated[Literal["bleu", "perplexity"], Paper("bleu")] = "perplexity"
    """The metric on held-out pairs that chooses the epoch whose weights are kept."""
    dev_share: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Share of the conversations that are held out for evaluation."""
    dev_replies: PositiveInt = 500
    """Held-out prompts whose greedy replies are scored with BLEU after each epoch."""


@dataclass(frozen=True)
class ReplyObjective:
    """Replies given prompts, or the reverse."""

    corpus: PairCorpus
    settings: ReplyPretrainSettings

    @property
    def examples(self) -> int:
        return len(self.corpus.train)

    def build(self) -> Seq2Seq:
        return untrained(self.corpus.vocabulary, self.settings.sizes).build(dropout=self.settings.dropout)

    def losses(self, network: nn.Module, rows: np.ndarray, *, step: int) -> Iterator[Tensor]:
        """The mean loss per word of these pairs, in blocks."""
        assert isinstance(network, Seq2Seq)
        pairs, parameters = self.corpus.train, {name: value[None] for name, value in network.named_parameters()}
        words = int(pairs.length[rows].sum())
        key = draws.step_key(self.settings.seed, "pretrain", 0, "", phase=0, step=step)
        for start in range(0, len(rows), ROWS):
            some = rows[start : start + ROWS]
            batch = draws.add_keys(pairs.batch(some), [key], torch.from_numpy(some))
            yield network.stacked(parameters, {name: one[None] for name, one in trim(batch).items()}).sum() / words

    def evaluate(self, network: nn.Module, *, epoch: int) -> Scores:
        assert isinstance(network, Seq2Seq)
        return evaluate_network(network, self.corpus, epoch=epoch, replies=self.settings.dev_replies)

    def best(self, history: Sequence[Scores]) -> Scores:
        """The best epoch; of several equal ones, the first. A perplexity of NaN is the worst."""
        if self.settings.choose_by == "bleu":
            return max(history, key=lambda one: one["bleu"])
        return min(history, key=lambda one: math.inf if math.isnan(one["perplexity"]) else one["perplexity"])


def trim(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without columns in which all rows are padding."""
    widths = {"question": int(batch["question_length"].max()), "reply": int((batch["reply"] != PADDING).sum(1).max())}
    return {name: one[:, : widths[name]] if name in widths else one for name, one in batch.items()}


@torch.no_grad()
def evaluate_network(network: Seq2Seq, corpus: PairCorpus, *, epoch: int, replies: int) -> Scores:
    """Perplexity of all held-out replies, and BLEU-4 of greedy replies to some held-out prompts, with add-one smoothing
    and as a fraction."""
    parameters = {name: value.detach()[None] for name, value in network.named_parameters()}
    total, dev = 0.0, corpus.dev
    for start in range(0, len(dev), ROWS):
        rows = np.arange(start, min(start + ROWS, len(dev)))
        batch = {name: one[None] for name, one in trim(dev.batch(rows)).items()}
        total += float(network.stacked(parameters, batch).sum())
    some = np.unique(np.linspace(0, len(dev) - 1, min(replies, len(dev))).round().astype(np.int64))
    decoder = ReplyDecoder({name: value[0] for name, value in parameters.items()}, layers=len(network.encoder))
    questions = [row[:size].tolist() for row, size in zip(dev.question[some], dev.question_length[some], strict=True)]
    written = greedy(decoder, decoder.start(questions), max_length=dev.reply.shape[1])
    spell = corpus.vocabulary.spell
    counts = [
        bleu_counts(spell(one.tokens), spell(row[row != PADDING].tolist()))
        for one, row in zip(written, dev.reply[some], strict=True)
    ]
    bleu = float(corpus_bleu(np.sum(counts, axis=0), smoothing="add-one"))
    mean = total / max(int(dev.length.sum()), 1)
    return {"epoch": epoch, "perplexity": perplexity(mean), "bleu": bleu}
