"""Frozen reference of the beam workload: plain torch, one question at a time, all its beams in one batch.

At each step the unfinished hypotheses are extended by every word. Extensions by the end word are finished; of the
others, the best `BEAM` stay. The search stops once no unfinished hypothesis can enter the list of the best `BEAM`
finished ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

VOCABULARY = 12_000
CELLS = 100
LAYERS = 4
BEAM = 200
LENGTH = 20
PAD, BEGIN, END, UNKNOWN = range(4)
BANNED = (PAD, BEGIN, UNKNOWN)


class Hypothesis(NamedTuple):
    tokens: tuple[int, ...]
    log_prob: float


class Model(nn.Module):
    """A decoder with random weights: frequencies of words as in text (Zipf), and states that depend on the words."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.words = nn.Embedding(VOCABULARY, CELLS)
        self.lstm = nn.LSTM(CELLS, CELLS, LAYERS)
        self.output = nn.Linear(CELLS, VOCABULARY)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                scale = 0.3 if "lstm.weight" in name else 3.0 if name == "output.weight" else 1.0
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
            self.output.bias.copy_(-torch.arange(1, VOCABULARY + 1).log())
            self.output.bias[END] = -14.0  # replies of all lengths
        self.requires_grad_(False)


def make_questions(questions: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """The states after a question, [layers, questions, cells] each, as an encoder would give them."""
    hidden = torch.randn(2, LAYERS, questions, CELLS, generator=torch.Generator().manual_seed(seed))
    return hidden[0].tanh(), hidden[1]


def step_flop(rows: int) -> int:
    """Nominal operations of one step of this number of hypotheses."""
    return 2 * rows * (LAYERS * 2 * CELLS * 4 * CELLS + CELLS * VOCABULARY)


@torch.no_grad()
def search(model: Model, hidden: Tensor, cell: Tensor, *, beam: int = BEAM) -> list[Hypothesis]:
    """The best replies to one question; the states are [layers, 1, cells]."""
    words = torch.empty(1, 0, dtype=torch.long)  # of the unfinished hypotheses
    scores, last = torch.zeros(1), torch.tensor([BEGIN])
    finished: list[Hypothesis] = []
    for length in range(LENGTH + 1):
        out, (hidden, cell) = model.lstm(model.words(last)[None], (hidden, cell))
        extended = scores[:, None] + model.output(out[0]).log_softmax(dim=1)
        if length > 0:
            ends = extended[:, END].tolist()
            finished += [Hypothesis(tuple(line), end) for line, end in zip(words.tolist(), ends, strict=True)]
            finished.sort(key=lambda one: -one.log_prob)
            finished = finished[:beam]
        if length == LENGTH:
            break
        extended[:, [END, *BANNED]] = -torch.inf
        scores, place = extended.view(-1).topk(beam)
        parent, last = place // VOCABULARY, place % VOCABULARY
        if len(finished) == beam and float(scores[0]) <= finished[-1].log_prob:
            break
        words = torch.cat((words[parent], last[:, None]), dim=1)
        hidden, cell = hidden[:, parent], cell[:, parent]
    return finished
