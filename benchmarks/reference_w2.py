"""Workload W2, the frozen reference: the loop most researchers would write, with torch and transformers.

FedPerC-like: a frozen GPT-2 of 4 layers x 256 reads one learned vector, personal * context, before every
utterance. A cohort of 20, ten steps of Adam on batches of 15, FedProx, unweighted federated averaging of the
context embeddings. W2 has utterances of 32 tokens; with texts of all lengths (W2-text) every batch is padded
to its longest. Nothing here imports homespun. Do not optimize this file: benchmark ratios are relative
to it.

    python benchmarks/reference_w2.py [threads]
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

USERS, SAMPLES, LENGTH, CONTEXTS = 200, 150, 32, 4
VOCABULARY, POSITIONS, WIDTH, LAYERS, HEADS = 8192, 64, 256, 4, 8
COHORT, STEPS, BATCH, RATE, PROXIMAL = 20, 10, 15, 1e-3, 1.0


def flop(tokens: int, squares: int) -> int:
    """Nominal FLOPs: forward and the gradient of the inputs, not of the weights. A multiply-add counts as two.

    `tokens` are all inputs of the utterances, the prefix included, and `squares` the sum of their lengths squared.
    """
    weights = LAYERS * 12 * WIDTH**2 + WIDTH * VOCABULARY
    return 4 * weights * tokens + 12 * LAYERS * WIDTH * squares


# 2116 GFLOP per round
ROUND_FLOP = flop(COHORT * STEPS * BATCH * (LENGTH + 1), COHORT * STEPS * BATCH * (LENGTH + 1) ** 2)


@dataclass(frozen=True)
class Data:
    """Every user's utterances, padded to the user's longest."""

    tokens: Sequence[Tensor]  # each [samples, longest]
    lengths: Sequence[Tensor]  # each [samples]
    contexts: Sequence[Tensor]  # each [samples]


@dataclass(frozen=True)
class Start:
    """Initial state of a run: the server's context embeddings and all users' personal embeddings."""

    context: Tensor  # [contexts, width]
    personal: Tensor  # [users, width]


@dataclass(frozen=True)
class Plan:
    """The cohort of a round, and the batches of each client."""

    cohort: Sequence[int]
    batches: Sequence[Sequence[np.ndarray]]  # [cohort][step]: positions of utterances


def make_model(seed: int = 0) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=POSITIONS,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(config)
    return model.eval().requires_grad_(False)


def make_data(seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (USERS, SAMPLES, LENGTH), generator=generator)
    contexts = torch.randint(CONTEXTS, (USERS, 1), generator=generator).expand(-1, SAMPLES)
    return Data(list(tokens), [torch.full((SAMPLES,), LENGTH)] * USERS, list(contexts))


def make_start(users: int = USERS, contexts: int = CONTEXTS, seed: int = 0) -> Start:
    generator = torch.Generator().manual_seed(seed)
    context = 0.02 * torch.randn(contexts, WIDTH, generator=generator)
    return Start(context, 1 + 0.1 * torch.randn(users, WIDTH, generator=generator))


def make_plan(round_number: int, data: Data, *, clients: int = COHORT, seed: int = 0) -> Plan:
    generator = np.random.default_rng((seed, round_number))
    cohort = sorted(int(user) for user in generator.choice(len(data.tokens), clients, replace=False))
    return Plan(cohort, [make_batches(len(data.lengths[user]), generator) for user in cohort])


def make_batches(samples: int, generator: np.random.Generator) -> list[np.ndarray]:
    batches: list[np.ndarray] = []
    while len(batches) < STEPS:
        order = generator.permutation(samples)
        batches += [order[first : first + BATCH] for first in range(0, samples, BATCH)]
    return batches[:STEPS]


def mean_loss(model: GPT2LMHeadModel, prefix: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
    """Mean cross-entropy of the real tokens, each predicted from the prefix and the tokens before it."""
    tokens = tokens[:, : int(lengths.max())]
    is_text = torch.arange(tokens.shape[1]) < lengths[:, None]
    inputs = torch.cat((prefix[:, None], model.transformer.wte(tokens)), dim=1)
    mask = None if bool(is_text.all()) else F.pad(is_text, (1, 0), value=True).long()
    logits = model(inputs_embeds=inputs, attention_mask=mask, use_cache=False).logits[:, :-1]
    labels = tokens.masked_fill(~is_text, -100)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def train_client(
    model: GPT2LMHeadModel, context: Tensor, personal: Tensor, *, data: Data, user: int, batches: Sequence[np.ndarray]
) -> tuple[Tensor, Tensor]:
    broadcast = context
    context, personal = context.clone().requires_grad_(), personal.clone().requires_grad_()
    optimizer = torch.optim.Adam((context, personal), lr=RATE)
    for batch in batches:
        rows = torch.from_numpy(batch)
        prefix = personal * context[data.contexts[user][rows]]
        optimizer.zero_grad(set_to_none=True)
        loss = mean_loss(model, prefix, data.tokens[user][rows], data.lengths[user][rows])
        (loss + PROXIMAL / 2 * (context - broadcast).square().sum()).backward()
        optimizer.step()
    return context.detach(), personal.detach()


def run_round(model: GPT2LMHeadModel, start: Start, *, data: Data, plan: Plan) -> Start:
    """One round of unweighted federated averaging; `start` is not modified."""
    total = torch.zeros_like(start.context)
    personal = start.personal.clone()
    for user, batches in zip(plan.cohort, plan.batches, strict=True):
        context, personal[user] = train_client(
            model, start.context, start.personal[user], data=data, user=user, batches=batches
        )
        total += context - start.context
    return Start(start.context + total / len(plan.cohort), personal)


def plan_flop(data: Data, plan: Plan) -> int:
    """Nominal FLOPs of a plan's real tokens, without padding."""
    inputs = torch.cat(
        [
            data.lengths[user][torch.from_numpy(batch)] + 1
            for user, batches in zip(plan.cohort, plan.batches, strict=True)
            for batch in batches
        ]
    )
    return flop(int(inputs.sum()), int(inputs.square().sum()))


def max_abs_difference(one: Start, other: Start) -> float:
    return max(
        float((one.context - other.context).abs().max()),
        float((one.personal - other.personal).abs().max()),
    )


def main(threads: int = 1, rounds: int = 3) -> None:
    torch.set_num_threads(threads)
    data, state, model = make_data(), make_start(), make_model()
    for round_number in range(rounds):
        plan = make_plan(round_number, data)
        begin = time.perf_counter()
        state = run_round(model, state, data=data, plan=plan)
        elapsed_s = time.perf_counter() - begin
        print(f"round {round_number}: {elapsed_s:.2f} s, {ROUND_FLOP / elapsed_s / 1e9:.1f} GFLOP/s")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:2]))
