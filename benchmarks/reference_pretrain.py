"""Workload pretrain, the frozen reference: pre-training of a reply model as most engineers would write it first.

12,000 words; 4 LSTM layers of 100 cells for reading and for writing; texts of at most 20 words; dropout 0.2, gradients
clipped at norm 5, Adam 0.003. A batch is padded to its longest text; the loss ignores padding. The encoder reads packed
or padded questions: packed ones end with the state after the last word, padded ones with the state after the padding.
Nothing here imports homespun. Do not optimize this file: benchmark ratios are relative to it.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

LENGTH, VOCABULARY = 20, 12_000
WORD_DIM, CELLS, LAYERS = 100, 100, 4
RATE, DROPOUT, CLIP = 0.003, 0.2, 5.0
PADDING, BEGIN, END = 0, 1, 2


@dataclass(frozen=True)
class Data:
    """Word numbers [pairs, words], padded with 0, and the number of words of each text."""

    question: Tensor
    question_length: Tensor
    reply: Tensor
    reply_length: Tensor


class Model(nn.Module):
    def __init__(self, dropout: float = DROPOUT, *, packed: bool = True) -> None:
        super().__init__()
        self.packed = packed
        self.words = nn.Embedding(VOCABULARY, WORD_DIM)
        self.encoder = nn.LSTM(WORD_DIM, CELLS, LAYERS, batch_first=True, dropout=dropout)
        self.decoder = nn.LSTM(WORD_DIM, CELLS, LAYERS, batch_first=True, dropout=dropout)
        self.output = nn.Linear(CELLS, VOCABULARY)
        self.drop = nn.Dropout(dropout)

    def forward(self, question: Tensor, question_length: Tensor, inputs: Tensor) -> Tensor:
        read = self.drop(self.words(question))
        if self.packed:
            _, state = self.encoder(pack_padded_sequence(read, question_length, batch_first=True, enforce_sorted=False))
        else:
            _, state = self.encoder(read)
        states, _ = self.decoder(self.drop(self.words(inputs)), state)
        return self.output(self.drop(states))


def make_model(dropout: float = DROPOUT, *, packed: bool = True, seed: int = 0) -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Model(dropout, packed=packed)


def make_optimizer(model: Model) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=RATE)


def take_step(model: Model, optimizer: torch.optim.Adam, data: Data, rows: Tensor) -> float:
    """One step on these pairs; returns the mean loss per word."""
    question_length, reply_length = data.question_length[rows], data.reply_length[rows]
    question = data.question[rows][:, : int(question_length.max())]
    reply = data.reply[rows][:, : int(reply_length.max())]
    inputs = F.pad(reply, (1, 0), value=BEGIN)
    targets = F.pad(reply, (0, 1), value=PADDING).scatter(1, reply_length[:, None], END)
    optimizer.zero_grad()
    logits = model(question, question_length, inputs)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PADDING)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    return loss.item()
