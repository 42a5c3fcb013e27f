"""Workload W5, the frozen reference: a next-word model as most researchers would write it, in plain torch.

OOV-Expansion-like: words are read by a convolution over their bytes (embedding of 100, 200 channels, kernel 4), two
LSTM layers of 200 cells, 5,000 words that can be predicted. A round: 96 users x 64 texts, one epoch in batches of 8,
SGD, federated averaging. At home: own words get rows of the output layer from their bytes through an
adapter, a residual MLP, and one setting after the other is trained, with early stopping. Batches are padded to their
longest text and their longest word. Nothing here imports homespun. Do not optimize this file: benchmark ratios are
relative to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

USERS, TEXTS, LENGTH, VOCABULARY = 96, 64, 50, 5_000
BYTES, BYTE_DIM, CELLS, KERNEL, LAYERS = 256, 100, 200, 4, 2
BATCH, RATE = 8, 0.84
PADDING, BEGIN, UNKNOWN, SPECIAL = 0, 1, 3, 4  # numbers before the first word
SUGGESTED = 3

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Data:
    """Word numbers [users, texts, words], padded with 0, the number of words of each text, and the bytes of every word
    of the vocabulary, padded with 0."""

    words: Tensor
    length: Tensor
    spelling: Tensor

    def flop(self) -> float:
        """Of one round, for real words only; a multiply-add counts as two, backward as twice the forward pass. The
        convolution, whose result is the same for the same word, is not counted."""
        each = LAYERS * 4 * CELLS * 2 * CELLS + CELLS * (VOCABULARY + SPECIAL)
        return 3 * 2 * int(self.length.sum()) * each


class Adapter(nn.Module):
    def __init__(self, hidden: Sequence[int]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(CELLS)
        self.layers = nn.ModuleList(nn.Linear(rows, columns) for rows, columns in pairwise((CELLS, *hidden, CELLS)))

    def forward(self, embeddings: Tensor) -> Tensor:
        found = self.norm(embeddings)
        for number, layer in enumerate(self.layers):
            found = layer(found.relu() if number else found)
        return embeddings + found


class Model(nn.Module):
    """`own` are the bytes of the user's own words, if there are any."""

    def __init__(self, *, own: Tensor | None = None, hidden: Sequence[int] = ()) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTES, BYTE_DIM)
        self.convolution = nn.Conv1d(BYTE_DIM, CELLS, KERNEL)
        self.lstm = nn.LSTM(CELLS, CELLS, LAYERS, batch_first=True)
        self.output = nn.Linear(CELLS, VOCABULARY + SPECIAL)
        self.own = own
        self.adapter = Adapter(hidden) if own is not None else None

    def embed(self, spelling: Tensor) -> Tensor:
        """The maximum over a word's windows of the convolution; a word shorter than a window has one."""
        spelling = spelling[..., : max(int((spelling != 0).sum(dim=-1).max()), KERNEL)]
        flat = spelling.flatten(0, -2)
        found = self.convolution(self.bytes(flat).transpose(1, 2))
        outside = flat[:, KERNEL - 1 :] == 0
        outside[:, 0] = False
        return found.masked_fill(outside[:, None], -torch.inf).amax(dim=2).tanh().view(*spelling.shape[:-1], CELLS)

    def forward(self, spelling: Tensor, length: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embed(spelling), length, batch_first=True, enforce_sorted=False)
        states = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]
        scores = self.output(states)
        if self.own is None or self.adapter is None:
            return scores
        rows = self.adapter(self.embed(self.own))
        return torch.cat((scores, states @ rows.T), dim=2)


def make_start(seed: int = 0) -> Weights:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return {name: value.detach() for name, value in Model().named_parameters()}


def logits_and_targets(
    model: Model, words: Tensor, length: Tensor, own: Tensor | None, spelling: Tensor
) -> tuple[Tensor, Tensor]:
    """`own` [texts, words] has the place of each own word, or -1."""
    longest = int(length.max())
    words = words[:, :longest]
    inputs = F.pad(words[:, :-1], (1, 0), value=BEGIN)
    targets = words.masked_fill(torch.arange(longest) >= length[:, None], -1)
    if own is not None:
        own = own[:, :longest]
        targets = torch.where((own >= 0) & (targets >= 0), own + VOCABULARY + SPECIAL, targets)
    return model(spelling[inputs], length), targets


def take_step(
    model: Model,
    optimizer: torch.optim.Optimizer,
    *,
    words: Tensor,
    length: Tensor,
    own: Tensor | None,
    spelling: Tensor,
) -> None:
    optimizer.zero_grad(set_to_none=True)
    logits, targets = logits_and_targets(model, words, length, own, spelling)
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum")
    (losses / length.sum()).backward()
    optimizer.step()


def train_client(model: Model, data: Data, user: int, order: np.ndarray) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for first in range(0, len(order), BATCH):
        rows = torch.from_numpy(order[first : first + BATCH])
        take_step(
            model,
            optimizer,
            words=data.words[user, rows],
            length=data.length[user, rows],
            own=None,
            spelling=data.spelling,
        )


def run_round(model: Model, start: Weights, *, data: Data, orders: Sequence[np.ndarray]) -> Weights:
    """One round of federated averaging over all users; `start` is not modified."""
    total = {name: torch.zeros_like(value) for name, value in start.items()}
    for user, order in enumerate(orders):
        model.load_state_dict(start)
        train_client(model, data, user, order)
        with torch.no_grad():
            for name, value in model.named_parameters():
                total[name] += len(order) * (value - start[name])
    texts = sum(len(order) for order in orders)
    return {name: value + total[name] / texts for name, value in start.items()}


# The search at home


@dataclass(frozen=True)
class Texts:
    """One user's texts: word numbers [texts, words], lengths, and the place of each own word or -1."""

    words: Tensor
    length: Tensor
    own: Tensor


@dataclass(frozen=True)
class Setting:
    rate: float
    hidden: tuple[int, ...]
    adapter: Weights  # its start


def right(model: Model, texts: Texts, spelling: Tensor) -> tuple[float, float]:
    """The share of words that are among the three suggested ones, and minus the mean loss. Special numbers are not
    suggested."""
    with torch.no_grad():
        logits, targets = logits_and_targets(model, texts.words, texts.length, texts.own, spelling)
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum")
        best = logits[..., SPECIAL:].topk(SUGGESTED).indices + SPECIAL
        hits = int(((best == targets[..., None]) & (targets >= SPECIAL)[..., None]).sum())
        count = int((targets >= 0).sum())
    return hits / count, -float(losses) / count


def search(
    settings: Sequence[Setting],
    start: Weights,
    *,
    lexicon: Tensor,
    fit: Texts,
    check: Texts,
    plans: Sequence[Sequence[np.ndarray]],
    spelling: Tensor,
) -> tuple[int, tuple[float, float], int]:
    """One setting after the other; `plans` has the batches of each epoch. Returns the place of the best setting, its
    score and the number of epochs of all settings."""
    best, best_score, epochs = -1, (-1.0, 0.0), 0
    for place, setting in enumerate(settings):
        model = Model(own=lexicon, hidden=setting.hidden)
        model.load_state_dict({**start, **{f"adapter.{name}": value for name, value in setting.adapter.items()}})
        optimizer = torch.optim.SGD(model.parameters(), lr=setting.rate)
        reached = right(model, check, spelling)
        scores = [reached]
        for plan in plans:
            for batch in plan:
                rows = torch.from_numpy(batch)
                take_step(
                    model,
                    optimizer,
                    words=fit.words[rows],
                    length=fit.length[rows],
                    own=fit.own[rows],
                    spelling=spelling,
                )
            epochs += 1
            scores.append(right(model, check, spelling))
            if not scores[-1] > reached:
                break
            reached = scores[-1]
        finite = [score for score in scores if np.isfinite(score).all()]
        if finite and max(finite) > best_score:
            best, best_score = place, max(finite)
    return best, best_score, epochs


def max_abs_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference between two sets of named tensors; the names must be the same."""
    if one.keys() != other.keys():
        raise ValueError(f"names differ: {sorted(one.keys() ^ other.keys())}")
    return max(float((value - other[name]).abs().max()) for name, value in one.items())
