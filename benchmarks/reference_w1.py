"""Workload W1, the frozen reference: the loop most researchers would write, in plain torch.

FURL-like: 1000 users x 64 texts of 40 characters, a BiLSTM document model with a private user embedding, a
cohort of 50, one epoch in batches of 8, SGD 0.1, federated averaging. Nothing here imports homespun. Do
not optimize this file: benchmark ratios are relative to it.

    python benchmarks/reference_w1.py [threads]
"""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

USERS, SAMPLES, LENGTH, VOCABULARY, CLASSES = 1000, 64, 40, 128, 64
CHARACTER_DIM, LSTM_DIM, HIDDEN_DIM, USER_DIM = 32, 64, 128, 32
COHORT, BATCH, RATE = 50, 8, 0.1
# A multiply-add counts as two; backward costs twice the forward pass: 38.3 GFLOP per round.
ROUND_FLOP = (
    3
    * 2
    * COHORT
    * SAMPLES
    * (
        LENGTH * 2 * 4 * LSTM_DIM * (CHARACTER_DIM + LSTM_DIM)
        + (2 * LSTM_DIM + USER_DIM) * HIDDEN_DIM
        + HIDDEN_DIM * CLASSES
    )
)

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Data:
    text: Tensor  # [users, samples, length], 1 .. vocabulary - 1
    label: Tensor  # [users, samples]


@dataclass(frozen=True)
class Start:
    """Initial state of a run: the server's weights and all users' private embeddings."""

    weights: Weights
    embeddings: Tensor  # [users, user_dim]


@dataclass(frozen=True)
class Plan:
    """The cohort of a round, and the order in which each client visits its samples."""

    cohort: Sequence[int]
    order: np.ndarray  # [cohort, samples]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, CHARACTER_DIM)
        self.lstm = nn.LSTM(CHARACTER_DIM, LSTM_DIM, batch_first=True, bidirectional=True)
        self.user = nn.Parameter(torch.zeros(USER_DIM))
        self.hidden = nn.Linear(2 * LSTM_DIM + USER_DIM, HIDDEN_DIM)
        self.output = nn.Linear(HIDDEN_DIM, CLASSES)

    def forward(self, text: Tensor) -> Tensor:
        _, (final, _) = self.lstm(self.characters(text))
        user = self.user.expand(len(text), -1)
        document = torch.cat((final[0], final[1], user), dim=1)
        return self.output(torch.relu(self.hidden(document)))


def make_data(seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(1, VOCABULARY, (USERS, SAMPLES, LENGTH), generator=generator)
    return Data(text, torch.randint(CLASSES, (USERS, SAMPLES), generator=generator))


def make_start(seed: int = 0) -> Start:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        weights = {name: value.detach() for name, value in Model().named_parameters() if name != "user"}
        return Start(weights, 0.1 * torch.randn(USERS, USER_DIM))


def make_plan(round_number: int, seed: int = 0) -> Plan:
    generator = np.random.default_rng((seed, round_number))
    cohort = sorted(int(user) for user in generator.choice(USERS, COHORT, replace=False))
    return Plan(cohort, np.stack([generator.permutation(SAMPLES) for _ in cohort]))


def train_client(model: Model, text: Tensor, label: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for first in range(0, len(text), BATCH):
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(text[first : first + BATCH]), label[first : first + BATCH]).backward()
        optimizer.step()


def run_round(model: Model, start: Start, *, data: Data, plan: Plan) -> Start:
    """One round of federated averaging, weighted by samples; `start` is not modified."""
    total = {name: torch.zeros_like(value) for name, value in start.weights.items()}
    embeddings = start.embeddings.clone()
    samples = 0
    for user, order in zip(plan.cohort, plan.order, strict=True):
        model.load_state_dict({**start.weights, "user": start.embeddings[user]})
        rows = torch.from_numpy(order)
        train_client(model, data.text[user, rows], data.label[user, rows])
        with torch.no_grad():
            trained = dict(model.named_parameters())
            for name, value in start.weights.items():
                total[name] += len(order) * (trained[name] - value)
            embeddings[user] = trained["user"]
        samples += len(order)
    return Start({name: value + total[name] / samples for name, value in start.weights.items()}, embeddings)


def max_abs_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference between two sets of named tensors; the names must be the same."""
    if one.keys() != other.keys():
        raise ValueError(f"names differ: {sorted(one.keys() ^ other.keys())}")
    return max(float((value - other[name]).abs().max()) for name, value in one.items())


def main(threads: int = 1, rounds: int = 5) -> None:
    torch.set_num_threads(threads)
    data, state, model = make_data(), make_start(), Model()
    for round_number in range(rounds):
        plan = make_plan(round_number)
        begin = time.perf_counter()
        state = run_round(model, state, data=data, plan=plan)
        elapsed_s = time.perf_counter() - begin
        print(f"round {round_number}: {elapsed_s:.2f} s, {ROUND_FLOP / elapsed_s / 1e9:.1f} GFLOP/s")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:2]))
