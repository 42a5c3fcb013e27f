"""The character-aware model: by hand, and many clients at once against one by one."""

import math

import pytest
import torch
from torch.func import functional_call

from homespun.models.next_word import (
    LONGEST_SPELLING,
    NO_BYTE,
    WORD_END,
    WORD_START,
    NextWord,
    shift,
    spell_vocabulary,
    spell_words,
    windows_inside,
)
from homespun.models.vocabulary import BEGIN, SPECIAL, Vocabulary
from homespun.models.word_losses import NOTHING

WORDS = Vocabulary(("a", "the", "sea", "is", "aaaaaaaa", "zürich", "w" * 40))


def model(**values):
    torch.manual_seed(1)
    return NextWord(WORDS, **{"byte_dim": 5, "cells": 6, **values}).double()


def batch_of(clients, rows=3, longest=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    length = torch.randint(1, longest + 1, (clients, rows), generator=generator)
    words = torch.randint(3, len(WORDS), (clients, rows, longest), generator=generator)
    return {"words": words.masked_fill(torch.arange(longest) >= length[..., None], 0), "length": length}


@pytest.mark.parametrize(("words", "millions"), [(5_000, 1.76), (10_000, 2.76)])
def test_parameters_of_the_paper(words, millions):
    network = NextWord(Vocabulary(tuple(f"w{number}" for number in range(words))))
    assert sum(value.numel() for value in network.parameters()) == pytest.approx(1e6 * millions, rel=0.01)


def test_spellings():
    rows = spell_words([b"", b"sea", b"w" * 40])
    assert rows[0, :3].tolist() == [WORD_START, WORD_END, NO_BYTE]
    assert rows[1, :6].tolist() == [WORD_START, *b"sea", WORD_END, NO_BYTE]
    assert rows[2].tolist() == [WORD_START, *[ord("w")] * LONGEST_SPELLING, WORD_END]
    assert windows_inside(rows).sum(dim=1).tolist() == [1, 2, LONGEST_SPELLING + 2 - 3]
    special = spell_vocabulary(WORDS)[:SPECIAL]
    assert len({tuple(row.tolist()) for row in special}) == SPECIAL


def test_what_is_read_and_predicted():
    inputs, targets = shift(torch.tensor([[7, 8, 0]]), torch.tensor([2]))
    assert inputs.tolist() == [[BEGIN, 7, 8]] and targets.tolist() == [[7, 8, NOTHING]]


def test_an_embedding_by_hand():
    """One channel that adds the first number of each byte of a window, which is 1 for `e` and 0 for others."""
    network = model(byte_dim=1, cells=1)
    with torch.no_grad():
        network.bytes.weight.zero_()[ord("e")] = 1.0
        network.convolution.weight.fill_(0.5)
        network.convolution.bias.fill_(0.25)
    found = network.embed(spell_words([b"e", b"eels", b"sea", b"no"]))[:, 0]
    # windows: (start e end -), (start e e l), (e e l s), ..., (start s e a), (s e a end), (start n o end)
    assert found.tolist() == pytest.approx([math.tanh(0.25 + 0.5 * e) for e in (1, 2, 1, 0)])


def test_a_loss_depends_on_earlier_words_only():
    network = model()
    batch = {"words": torch.tensor([[4, 5, 6, 7]]), "length": torch.tensor([4])}
    changed = {**batch, "words": torch.tensor([[4, 5, 6, 8]])}
    before, after = network(batch)[0], network(changed)[0]
    assert torch.equal(before[:3], after[:3]) and before[3] != after[3]
    shorter = network({**batch, "length": torch.tensor([2])})[0]
    torch.testing.assert_close(shorter[:2], before[:2])
    assert shorter[2:].tolist() == [0, 0]


@pytest.mark.parametrize("clients", [1, 3])
def test_many_clients_at_once(clients):
    """Losses and gradients are those of every client by itself."""
    network, batch = model(), batch_of(clients, rows=5, longest=6)
    torch.manual_seed(2)
    own = [
        {name: value.detach() + 0.1 * torch.randn_like(value) for name, value in network.named_parameters()}
        for _ in range(clients)
    ]
    stacked = {name: torch.stack([one[name] for one in own]).requires_grad_() for name in own[0]}
    losses = network.stacked(stacked, batch)
    weights = torch.rand_like(losses)
    (losses * weights).sum().backward()
    for client, parameters in enumerate(own):
        single = {name: value.clone().requires_grad_() for name, value in parameters.items()}
        rows = {name: column[client] for name, column in batch.items()}
        expected = functional_call(network, single, (rows,))
        torch.testing.assert_close(losses[client], expected)
        (expected * weights[client]).sum().backward()
        for name, value in single.items():
            torch.testing.assert_close(stacked[name].grad[client], value.grad, msg=name)


def test_the_same_weights_for_all_clients():
    network, batch = model(), batch_of(4)
    parameters = {name: value.detach()[None].expand(4, *value.shape) for name, value in network.named_parameters()}
    with torch.no_grad():
        found = network.stacked(parameters, batch)
        for client in range(4):
            torch.testing.assert_close(found[client], network({name: one[client] for name, one in batch.items()}))
