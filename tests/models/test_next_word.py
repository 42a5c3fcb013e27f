"""The character-aware model: by hand, and many clients at once against one by one."""

import math

import pytest
import torch
from torch.func import functional_call

from homespun.models.next_word import (
    FROM_SPELLING,
    FROM_UNKNOWN,
    LONGEST_SPELLING,
    NO_BYTE,
    WORD_END,
    WORD_START,
    NextWord,
    log_shares,
    places_in,
    read_spelling,
    shift,
    spell_vocabulary,
    spell_words,
    windows_inside,
)
from homespun.models.suggestion_ranks import NO_RANK, NOTHING
from homespun.models.vocabulary import BEGIN, SPECIAL, UNKNOWN, Vocabulary
from homespun.models.word_adapter import adapt, adapter_size, new_adapter

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
    assert [read_spelling(row) for row in rows] == [b"", b"sea", b"w" * LONGEST_SPELLING]
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
    before, after = network(batch)[0, :, 0], network(changed)[0, :, 0]
    assert torch.equal(before[:3], after[:3]) and before[3] != after[3]
    shorter = network({**batch, "length": torch.tensor([2])})[0, :, 0]
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


# Own words


def expanded(clients, *, words, hidden=(3, 4), seed=3, prior=(), start=FROM_SPELLING):
    """A network for lexicons, and parameters of some clients with lexicons of this many words."""
    torch.manual_seed(seed)
    network = NextWord(WORDS, byte_dim=5, cells=6, lexicon=True, prior=prior).double()
    generator = torch.Generator().manual_seed(seed)
    own = []
    for client in range(clients):
        parameters = {
            name: value.detach() + 0.1 * torch.randn_like(value)
            for name, value in network.named_parameters()
            if not name.startswith("own.")
        }
        parameters["own.lexicon"] = spell_words([f"own{client}-{number}".encode() for number in range(words)])
        parameters["own.counts"] = torch.arange(words) + client
        parameters["own.unknowns"] = torch.tensor([5 * client])
        parameters["own.start"] = torch.tensor([start])
        parameters["own.hidden"] = torch.tensor(hidden)
        parameters["own.adapter"] = new_adapter(hidden, cells=6, scale=0.5, generator=generator).double()
        own.append(parameters)
    return network, own


def with_own_words(batch, *, words, seed=4):
    """Some words are unknown to the vocabulary, and some of these are in the lexicon."""
    generator = torch.Generator().manual_seed(seed)
    own = torch.randint(NOTHING, words, batch["words"].shape, generator=generator)
    unknown = (torch.rand(own.shape, generator=generator) < 0.5) & (batch["words"] != 0)
    return {**batch, "words": batch["words"].masked_fill(unknown, UNKNOWN), "own": own.masked_fill(~unknown, NOTHING)}


@pytest.mark.parametrize(
    ("hidden", "size"), [((960,), 385_560), ((128, 256, 128), 117_848), ((256, 512, 256), 366_168)]
)
def test_the_size_of_an_adapter(hidden, size):
    """960: 400 of the normalization, 200 x 960 + 960, and 960 x 200 + 200."""
    assert adapter_size(hidden, cells=200) == size


def test_parameters_with_the_adapter_of_the_paper():
    network = NextWord(Vocabulary(tuple(f"w{number}" for number in range(5_000))))
    shared = sum(value.numel() for value in network.parameters())
    assert shared + adapter_size((256, 512, 256), cells=200) == pytest.approx(2.12e6, rel=0.01)
    assert NextWord(WORDS, prior=(256, 512, 256)).adapter.numel() == adapter_size((256, 512, 256), cells=200)


def test_an_adapter_of_zeros_is_the_identity():
    adapter = new_adapter((7, 3), cells=4, scale=0.0, generator=torch.Generator())
    embeddings = torch.randn(5, 4)
    assert torch.equal(adapt(embeddings, adapter, hidden=(7, 3), start=embeddings), embeddings)


def test_an_adapter_by_hand():
    """Two cells and one hidden unit. The norm of (3, 1) is (1, -1), up to its epsilon; gain 2 and shift 1 make (3, -1).
    The hidden unit is relu(1 * 3 + 1 * -1 + 0.5) = 2.5, so that 2.5 (1, -2) + (0.25, 0) is added to the start."""
    adapter = torch.tensor([2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 0.5, 1.0, -2.0, 0.25, 0.0], dtype=torch.float64)
    embedding = torch.tensor([[3.0, 1.0]], dtype=torch.float64)
    for start in (embedding, torch.tensor([[0.5, 7.0]], dtype=torch.float64)):
        found = adapt(embedding, adapter, hidden=(1,), start=start)
        assert (found - start)[0].tolist() == pytest.approx([2.5 + 0.25, -5.0], abs=1e-4)


def test_own_words_compete_with_the_vocabulary():
    """Without a lexicon, an own word is the unknown word. One softmax is over the vocabulary and the lexicon."""
    network, (own,) = expanded(1, words=2)
    batch = {"words": torch.tensor([[5, UNKNOWN]]), "length": torch.tensor([2]), "own": torch.tensor([[NOTHING, 1]])}
    without = {name: value for name, value in own.items() if not name.startswith("own.")}
    plain, joined = (functional_call(network, one, (batch,))[0, :, 0] for one in (without, own))
    states = functional_call(Expose(network), {f"network.{name}": one for name, one in own.items()}, (batch,))
    embedded = functional_call(
        Embed(network), {f"network.{name}": one for name, one in own.items()}, (own["own.lexicon"],)
    )
    rows = adapt(embedded, own["own.adapter"], hidden=(3, 4), start=embedded)
    logits = torch.cat((states @ own["output.weight"].T + own["output.bias"], states @ rows.T), dim=1)
    expected = torch.logsumexp(logits, dim=1) - logits[[0, 1], [5, len(WORDS) + 1]]
    torch.testing.assert_close(joined, expected)
    assert joined[0] > plain[0]  # the known word has more competitors


def shares(counts, unknowns):
    return log_shares(torch.tensor(counts), unknowns=torch.tensor([unknowns])).exp().tolist()


def test_words_that_are_left_to_a_memory_are_as_improbable_in_both_forms():
    network, (own,) = expanded(1, words=3, hidden=(0,), start=FROM_UNKNOWN)
    batch = with_own_words(batch_of(1, rows=5, longest=6), words=3)
    with torch.no_grad():
        found = network.stacked({name: one[None] for name, one in own.items()}, batch)[0]
        expected = functional_call(network, own, ({name: column[0] for name, column in batch.items()},))
    torch.testing.assert_close(found, expected)
    assert expected[..., 0].max() > 25


def test_own_words_start_with_their_share_of_the_unknown_word():
    """Typed 3 and 1 times, less 0.75 each, of 4 and one more: shares of 0.45 and 0.05. Before training, the probability
    of an own word is that of the unknown word times its share, and known words keep their ratios."""
    network, (own,) = expanded(1, words=2, hidden=(), start=FROM_UNKNOWN)
    own["own.counts"] = torch.tensor([3, 1])
    own["own.unknowns"] = torch.tensor([4])
    assert shares([3, 1], 4) == pytest.approx([0.45, 0.05])
    assert shares([3, 1], 9) == pytest.approx([0.225, 0.025])  # five more are no own words
    assert shares([0] * 300, 2) == pytest.approx([0.25 / 301] * 300)  # not typed yet: counts as typed once

    def losses(word, place=NOTHING):
        batch = {
            "words": torch.tensor([[5, word]]),
            "length": torch.tensor([2]),
            "own": torch.tensor([[NOTHING, place]]),
        }
        return float(functional_call(network, own, (batch,))[0, 1, 0])

    assert losses(UNKNOWN, 0) == pytest.approx(losses(UNKNOWN) - math.log(0.45))
    assert losses(UNKNOWN, 1) == pytest.approx(losses(UNKNOWN) - math.log(0.05))
    with_words = losses(5) - losses(4)
    own["own.lexicon"] = own["own.lexicon"][:0]
    assert losses(5) - losses(4) == pytest.approx(with_words)


class Expose(torch.nn.Module):
    """The states of the only row of a batch."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, batch):
        inputs, _ = shift(batch["words"], batch["length"])
        states = self.network.embed(self.network.spelling[inputs])
        for layer in self.network.lstm:
            states = layer(states)[0]
        return states[0]


class Embed(Expose):
    def forward(self, spelling):
        return self.network.embed(spelling)


@pytest.mark.parametrize("start", [FROM_SPELLING, FROM_UNKNOWN])
@pytest.mark.parametrize(("clients", "words"), [(1, 3), (3, 2)])
def test_many_lexicons_at_once(clients, words, start):
    """Losses and gradients are those of every client by itself."""
    network, own = expanded(clients, words=words, start=start)
    batch = with_own_words(batch_of(clients, rows=5, longest=6), words=words)
    floats = [name for name, value in own[0].items() if value.is_floating_point()]
    stacked = {name: torch.stack([one[name] for one in own]) for name in own[0]}
    stacked |= {name: stacked[name].requires_grad_() for name in floats}
    losses = network.stacked(stacked, batch)[..., 0]
    weights = torch.rand_like(losses)
    (losses * weights).sum().backward()
    for client, parameters in enumerate(own):
        single = {**parameters, **{name: parameters[name].clone().requires_grad_() for name in floats}}
        rows = {name: column[client] for name, column in batch.items()}
        expected = functional_call(network, single, (rows,))[..., 0]
        torch.testing.assert_close(losses[client], expected)
        (expected * weights[client]).sum().backward()
        for name in floats:
            torch.testing.assert_close(stacked[name].grad[client], single[name].grad, msg=name)


@pytest.mark.parametrize("start", [FROM_SPELLING, FROM_UNKNOWN])
def test_a_shared_adapter_for_lexicons_of_different_sizes(start):
    """Losses and gradients of clients whose lexicons are padded are those of every client by itself."""
    sizes = (3, 0, 1)
    network, own = expanded(3, words=3, prior=(3, 4), start=start)
    batch = with_own_words(batch_of(3, rows=5, longest=6), words=3)
    sized = torch.tensor(sizes)[:, None, None]
    batch["own"] = batch["own"].masked_fill(batch["own"] >= sized, NOTHING)
    stacked = {name: torch.stack([one[name] for one in own]) for name in own[0] if name != "own.adapter"}
    stacked["own.lexicon"] = stacked["own.lexicon"].masked_fill(torch.arange(3)[None, :, None] >= sized, NO_BYTE)
    stacked["own.counts"] = stacked["own.counts"].masked_fill(torch.arange(3) >= sized[..., 0], 0)
    stacked["own.adapter"] = torch.zeros(3, 0)
    floats = [name for name, value in stacked.items() if value.is_floating_point() and value.numel()]
    stacked |= {name: stacked[name].requires_grad_() for name in floats}
    losses = network.stacked(stacked, batch)[..., 0]
    losses.sum().backward()
    for client, (parameters, size) in enumerate(zip(own, sizes, strict=True)):
        single = {**parameters, **{name: parameters[name].clone().requires_grad_() for name in floats}}
        single |= {
            "own.adapter": torch.zeros(0),
            **{name: single[name][:size] for name in ("own.lexicon", "own.counts")},
        }
        expected = functional_call(network, single, ({name: column[client] for name, column in batch.items()},))
        torch.testing.assert_close(losses[client], expected[..., 0])
        expected[..., 0].sum().backward()
        for name in floats:
            gradient = torch.zeros_like(single[name]) if single[name].grad is None else single[name].grad
            torch.testing.assert_close(stacked[name].grad[client], gradient, msg=name)
    assert stacked["adapter"].grad[1].abs().max() == 0 < stacked["adapter"].grad[2].abs().max()
    assert stacked["bytes.weight"].grad[:, ord("0")].abs().max() == 0  # own words alone have this character


def test_ranks():
    """The rank of a word counts the words of larger scores, in both forms, and unknown words have none."""
    network, own = expanded(2, words=3)
    batch = with_own_words(batch_of(2, rows=5, longest=6), words=3)
    stacked = {name: torch.stack([one[name] for one in own]) for name in own[0]}
    with torch.no_grad():
        found = network.stacked(stacked, batch)[..., 1]
        for client, parameters in enumerate(own):
            rows = {name: column[client] for name, column in batch.items()}
            plain = functional_call(network, parameters, (rows,))
            assert torch.equal(found[client], plain[..., 1])
            unknown = (rows["words"] == UNKNOWN) & (rows["own"] == NOTHING)
            unknown &= torch.arange(6) < rows["length"][:, None]
            assert unknown.any() and (plain[..., 1][unknown] == NO_RANK).all()
            most = len(WORDS) - SPECIAL + 3 - 1
            real = (torch.arange(6) < rows["length"][:, None]) & ~unknown
            assert plain[..., 1][real].min() >= 0 and plain[..., 1][real].max() <= most


def test_of_equal_scores_the_lower_number_is_first():
    network = model()
    with torch.no_grad():
        network.output.weight.zero_()
        network.output.bias.zero_()
        ranks = network({"words": torch.tensor([[SPECIAL, SPECIAL + 2, 1]]), "length": torch.tensor([2])})[0, :, 1]
    assert ranks.tolist() == [0, 2, 0]


def test_places_in_a_lexicon():
    lexicon = spell_words([b"ada", b"bo", b"cy"])
    spelling = torch.stack((spell_words([b"bo", b"dee"]), spell_words([b"ada", b"bo"])))
    spelling[1, 1] = NO_BYTE  # a word of the vocabulary
    assert places_in(lexicon, spelling).tolist() == [[1, NOTHING], [0, NOTHING]]
    assert places_in(lexicon[:0], spelling).tolist() == [[NOTHING] * 2] * 2
    many = places_in(torch.stack((lexicon, lexicon.flip(0))), torch.stack((spelling, spelling)))
    assert many.tolist() == [[[1, NOTHING], [0, NOTHING]], [[1, NOTHING], [2, NOTHING]]]
