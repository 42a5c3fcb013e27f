"""An attack by an honest-but-curious server: it reconstructs a private embedding from one client's update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from homespun.core import seeds
from homespun.core.messages import Update
from homespun.core.method import Assign, BuiltMethod
from homespun.core.roles import Role
from homespun.core.transforms import NO_TRANSFORMS, Transforms
from homespun.engines.client import Client
from homespun.engines.loop import LoopTrainer

SMALLEST_EMBEDDING, LARGEST_EMBEDDING = 4, 10_000  # fewer numbers are guessed by chance; more are an output head


@dataclass(frozen=True)
class Inversion:
    """How well the attack reconstructs the private embedding of one client."""

    examples: int
    relative_error: float  # |guess - truth| / |truth|; 0: exact, 1: no better than guessing zeros
    cosine: float


def attack_updates(
    built: BuiltMethod, clients: Sequence[Client], *, seed: int, transforms: Transforms = NO_TRANSFORMS
) -> tuple[Inversion, ...]:
    """Reconstruct each client's private embedding from its update alone.

    The attack assumes that the embedding is an input of a linear layer. In one round of SGD the layer's weights change
    by a sum of g x^T and its bias by the sum of g, so bias-delta^T weight-delta / |bias-delta|^2 is the mean input,
    embedding included, weighted by the gradients. All windows of columns are tried and the best is reported, because
    an attacker who has the code knows the columns of the embedding.
    If the embedding is instead multiplied by a shared parameter, it is a factor of that parameter's gradient: every
    tensor and row of the same size is also a guess, at its best scale.
    """
    assigned = {name for phase in built.method.local.phases if isinstance(phase, Assign) for name in phase.names}
    names = [
        name
        for name in built.partition.names(Role.PRIVATE)
        if name not in assigned  # its value does not depend on what the client had
        and SMALLEST_EMBEDDING <= built.initial[name].numel() <= LARGEST_EMBEDDING
    ]
    if not names:
        return ()
    start = built.start()
    generator = seeds.torch_generator(seed, "attacked embedding")
    attacks = []
    for client in clients:
        truth = {name: torch.randn(built.initial[name].shape, generator=generator) for name in names}
        victim = replace(client, private={**client.private, **truth})
        outcome = LoopTrainer(built, seed, transforms).train(start.broadcast(), [victim])
        guesses = [_mean_input(outcome.update.federated, layer) for layer in _linear_layers(start.federated)]
        for name in names:
            own = truth[name].flatten()
            scaled = [_best_scale(delta, own) for delta in _deltas(outcome.update) if delta.numel() == own.numel()]
            best = min((_closeness(guess, own) for guess in (*guesses, *scaled)), default=(1.0, 0.0))
            attacks.append(Inversion(client.examples, *best))
    return tuple(attacks)


def _deltas(update: Update) -> list[Tensor]:
    rows = [row for some in update.keyed.values() for row in some.values]
    return [tensor.double().flatten() for tensor in (*update.federated.values(), *update.statistics.values(), *rows)]


def _best_scale(guess: Tensor, truth: Tensor) -> Tensor:
    return guess * (guess @ truth.double()) / (guess @ guess).clamp_min(1e-30)


def _linear_layers(federated: Mapping[str, Tensor]) -> list[str]:
    layers = [name.removesuffix(".weight") for name in federated if name.endswith(".weight")]
    return [layer for layer in layers if f"{layer}.bias" in federated and federated[f"{layer}.weight"].dim() == 2]


def _mean_input(delta: Mapping[str, Tensor], layer: str) -> Tensor:
    weight, bias = delta[f"{layer}.weight"].double(), delta[f"{layer}.bias"].double()
    return bias @ weight / (bias @ bias).clamp_min(1e-30)


def _closeness(guess: Tensor, truth: Tensor) -> tuple[float, float]:
    """Return the relative error and the cosine of the best window of the guess."""
    truth = truth.double()
    windows = (
        guess.unfold(0, len(truth), 1) if len(guess) >= len(truth) else torch.zeros(1, len(truth), dtype=torch.float64)
    )
    errors = (windows - truth).norm(dim=1) / truth.norm()
    best = int(errors.argmin())
    cosine = torch.nn.functional.cosine_similarity(windows[best], truth, dim=0)
    return float(errors[best]), float(cosine)
