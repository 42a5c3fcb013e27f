"""Workload W4, the frozen reference: persona dialogue as most researchers would write it, in plain torch.

FedNLG-like: 48 speakers x 64 pairs of a question and its reply, at most 20 words each, 12,000 words; 4 LSTM layers of
100 cells for reading and for writing; a private persona of 128 numbers, joined to every decoder input; one epoch in
batches of 16, dropout 0.2, gradients clipped at norm 5, SGD 0.1, federated averaging. Batches are padded to their
longest text. Nothing here imports homespun. Do not optimize this file: benchmark ratios are relative to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

SPEAKERS, PAIRS, LENGTH, VOCABULARY = 48, 64, 20, 12_000
WORD_DIM, CELLS, LAYERS, PERSONA_DIM = 100, 100, 4, 128
BATCH, RATE, DROPOUT, CLIP = 16, 0.1, 0.2, 5.0
PADDING, BEGIN, END = 0, 1, 2

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Data:
    """Word numbers [speakers, pairs, words], padded with 0, and the number of words of each text."""

    question: Tensor
    question_length: Tensor
    reply: Tensor
    reply_length: Tensor

    def flop(self) -> float:
        """Of one round, for real words only; a multiply-add counts as two, backward as twice the forward pass."""
        read, written = int(self.question_length.sum()), int(self.reply_length.sum()) + self.reply_length.numel()
        first = 4 * CELLS * (WORD_DIM + CELLS)
        more = (LAYERS - 1) * 4 * CELLS * 2 * CELLS
        decoder = first + 4 * CELLS * PERSONA_DIM + more + CELLS * VOCABULARY
        return 3 * 2 * (read * (first + more) + written * decoder)


@dataclass(frozen=True)
class Start:
    """The server's weights and all speakers' personas."""

    weights: Weights
    personas: Tensor  # [speakers, persona_dim]


class Model(nn.Module):
    def __init__(self, dropout: float = DROPOUT) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WORD_DIM)
        self.encoder = nn.LSTM(WORD_DIM, CELLS, LAYERS, batch_first=True, dropout=dropout)
        self.decoder = nn.LSTM(WORD_DIM + PERSONA_DIM, CELLS, LAYERS, batch_first=True, dropout=dropout)
        self.output = nn.Linear(CELLS, VOCABULARY)
        self.persona = nn.Parameter(torch.zeros(PERSONA_DIM))
        self.drop = nn.Dropout(dropout)

    def forward(self, question: Tensor, question_length: Tensor, inputs: Tensor) -> Tensor:
        read = self.drop(self.words(question))
        packed = pack_padded_sequence(read, question_length, batch_first=True, enforce_sorted=False)
        _, state = self.encoder(packed)
        written = self.drop(self.words(inputs))
        own = self.persona.expand(*inputs.shape, -1)
        states, _ = self.decoder(torch.cat((written, own), dim=2), state)
        return self.output(self.drop(states))


def make_start(seed: int = 0) -> Start:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        weights = {name: value.detach() for name, value in Model().named_parameters() if name != "persona"}
        return Start(weights, torch.randn(SPEAKERS, PERSONA_DIM))


def train_client(model: Model, data: Data, speaker: int, order: np.ndarray) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for first in range(0, len(order), BATCH):
        rows = torch.from_numpy(order[first : first + BATCH])
        question_length, reply_length = data.question_length[speaker, rows], data.reply_length[speaker, rows]
        question = data.question[speaker, rows][:, : int(question_length.max())]
        reply = data.reply[speaker, rows][:, : int(reply_length.max())]
        inputs = F.pad(reply, (1, 0), value=BEGIN)
        targets = F.pad(reply, (0, 1), value=PADDING).scatter(1, reply_length[:, None], END)
        optimizer.zero_grad(set_to_none=True)
        logits = model(question, question_length, inputs)
        F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PADDING).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()


def run_round(model: Model, start: Start, *, data: Data, orders: Sequence[np.ndarray]) -> Start:
    """One round of federated averaging over all speakers; `start` is not modified."""
    total = {name: torch.zeros_like(value) for name, value in start.weights.items()}
    personas = start.personas.clone()
    for speaker, order in enumerate(orders):
        model.load_state_dict({**start.weights, "persona": start.personas[speaker]})
        train_client(model, data, speaker, order)
        with torch.no_grad():
            trained = dict(model.named_parameters())
            for name, value in start.weights.items():
                total[name] += len(order) * (trained[name] - value)
            personas[speaker] = trained["persona"]
    pairs = sum(len(order) for order in orders)
    return Start({name: value + total[name] / pairs for name, value in start.weights.items()}, personas)


def max_abs_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference between two sets of named tensors; the names must be the same."""
    if one.keys() != other.keys():
        raise ValueError(f"names differ: {sorted(one.keys() ^ other.keys())}")
    return max(float((value - other[name]).abs().max()) for name, value in one.items())
