"""Workload W3, the frozen reference: the loop most researchers would write, in plain torch.

FedEmbed on digits: 9000 users x 20 images of 28 x 28, a cohort of 900, the paper's encoder and heads, one gradient of
each client at the weights it was sent and one Adam step of its embedding; the server averages and makes the step. The
common head's gradient reaches the embedding through the encoder, but not the encoder's weights, so the encoder runs a
second time with weights that need no gradient. With `clip`, each client's whole update is clipped to that norm. Nothing
here imports homespun. Do not optimize this file: benchmark ratios are relative to it.

    python benchmarks/reference_w3.py [threads]
"""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

USERS, SAMPLES, SIDE, KINDS, CLASSES = 9000, 20, 28, 10, 2
EMBEDDING_DIM, FEATURES = 28, 64
COHORT, EMBEDDING_RATE, SERVER_RATE, CLIP = 900, 0.01, 0.1, 1.0
# A multiply-add counts as two; backward costs twice the forward pass; the encoder counts once: 44.8 GFLOP per round.
ROUND_FLOP = (
    3
    * 2
    * COHORT
    * SAMPLES
    * (
        14 * 14 * 16 * 2 * 9
        + 7 * 7 * 32 * 16 * 9
        + FEATURES * 32 * 7 * 7
        + (FEATURES + EMBEDDING_DIM) * (2 * CLASSES + KINDS)
    )
)

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Data:
    image: Tensor  # uint8 [users, samples, 28, 28]
    kind: Tensor  # [users, samples]: what it shows
    label: Tensor  # [users, samples]: liked or not
    head: Tensor  # [users]: the sub-population


@dataclass(frozen=True)
class Start:
    """Initial state of a run: the server's weights and all users' personal embeddings."""

    weights: Weights
    embeddings: Tensor  # [users, embedding_dim]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(2, 16, 3, stride=2, padding=1),
            nn.LayerNorm([16, 14, 14]),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.LayerNorm([32, 7, 7]),
            nn.Conv2d(32, FEATURES, 7),
            nn.LayerNorm([FEATURES, 1, 1]),
        )
        self.heads = nn.ModuleList(nn.Linear(FEATURES + EMBEDDING_DIM, CLASSES) for _ in range(KINDS))
        self.kinds = nn.Linear(FEATURES + EMBEDDING_DIM, KINDS)
        self.common = nn.Linear(FEATURES + EMBEDDING_DIM, CLASSES)

    def features(self, image: Tensor, embedding: Tensor) -> Tensor:
        person = torch.diag(embedding).expand(len(image), 1, SIDE, SIDE)
        encoded = self.encoder(torch.cat((image, person), dim=1)).flatten(1)
        return torch.cat((encoded, embedding.expand(len(image), -1)), dim=1)


def make_data(seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    return Data(
        image=torch.randint(256, (USERS, SAMPLES, SIDE, SIDE), generator=generator, dtype=torch.uint8),
        kind=torch.randint(KINDS, (USERS, SAMPLES), generator=generator),
        label=torch.randint(CLASSES, (USERS, SAMPLES), generator=generator),
        head=torch.randint(KINDS, (USERS,), generator=generator),
    )


def make_start(seed: int = 0) -> Start:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        weights = {name: value.detach() for name, value in Model().named_parameters()}
        return Start(weights, torch.rand(USERS, EMBEDDING_DIM))


def make_cohort(round_number: int, seed: int = 0) -> list[int]:
    generator = np.random.default_rng((seed, round_number))
    return sorted(int(user) for user in generator.choice(USERS, COHORT, replace=False))


def train_client(model: Model, embedding: Tensor, *, data: Data, user: int) -> Tensor:
    """Leaves the client's gradients in the model and returns its new embedding."""
    image, label = data.image[user].unsqueeze(1).float() / 255, data.label[user]
    embedding = embedding.clone().requires_grad_()
    optimizer = torch.optim.Adam([embedding], lr=EMBEDDING_RATE)
    model.zero_grad(set_to_none=True)
    features = model.features(image, embedding)
    loss = F.cross_entropy(model.heads[int(data.head[user])](features), label)
    loss = loss + F.cross_entropy(model.kinds(features), data.kind[user])
    model.encoder.requires_grad_(False)
    loss = loss + F.cross_entropy(model.common(model.features(image, embedding)), label)
    model.encoder.requires_grad_(True)
    loss.backward()
    optimizer.step()
    return embedding.detach()


def run_round(model: Model, start: Start, *, data: Data, cohort: Sequence[int], clip: float | None = None) -> Start:
    """One round, all clients with the same weight; `start` is not modified."""
    model.load_state_dict(start.weights)
    total = {name: torch.zeros_like(value) for name, value in start.weights.items()}
    embeddings = start.embeddings.clone()
    for user in cohort:
        embeddings[user] = train_client(model, start.embeddings[user], data=data, user=user)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        for name, value in model.named_parameters():
            if value.grad is not None:  # of all heads only the client's own has a gradient
                total[name] += value.grad
    weights = {name: value - SERVER_RATE * total[name] / len(cohort) for name, value in start.weights.items()}
    return Start(weights, embeddings)


def max_abs_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference between two sets of named tensors; the names must be the same."""
    if one.keys() != other.keys():
        raise ValueError(f"names differ: {sorted(one.keys() ^ other.keys())}")
    return max(float((value - other[name]).abs().max()) for name, value in one.items())


def main(threads: int = 1, rounds: int = 3) -> None:
    torch.set_num_threads(threads)
    data, state, model = make_data(), make_start(), Model()
    for round_number in range(rounds):
        cohort = make_cohort(round_number)
        begin = time.perf_counter()
        state = run_round(model, state, data=data, cohort=cohort)
        elapsed_s = time.perf_counter() - begin
        print(f"round {round_number}: {elapsed_s:.2f} s, {ROUND_FLOP / elapsed_s / 1e9:.1f} GFLOP/s")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:2]))
