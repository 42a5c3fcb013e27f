"""Words as pieces, and the network that reads and predicts them."""

import json
import math
from itertools import product

import pytest
import torch
from torch.func import functional_call

from homespun.core.errors import InputError
from homespun.core.words import words
from homespun.models.next_subword import NextSubword, as_words, encode_subwords
from homespun.models.next_word import NextWord
from homespun.models.subwords import MARK, UNSPLIT, Subwords, learn_subwords
from homespun.models.suggestion_ranks import NO_RANK, SUGGESTED
from homespun.models.vocabulary import PADDING, SPECIAL, UNKNOWN, most_frequent_words
from homespun.models.word_batches import encode_texts

TEXTS = ["the sea, the sea", "the seas the see", "see, the tea"]


def spelled(subwords, word):
    return subwords.pieces.spell(subwords.split(word))


def test_pieces_of_words():
    """Pairs merge by how often they occur, and equally frequent ones in a fixed order."""
    subwords = learn_subwords(TEXTS, size=13)
    assert subwords.merges == (("h", "e_"), ("s", "e"), ("t", "he_"))
    assert len(subwords.pieces.known) == 13 and UNSPLIT not in subwords.pieces.known
    assert spelled(subwords, "the") == ["the_"] and spelled(subwords, "he") == ["he_"]
    assert spelled(subwords, "sea") == ["se", "a_"] and spelled(subwords, "seas") == ["se", "a", "s_"]
    assert subwords.split("zee") == subwords.split("sez") == subwords.split("a" * 31) == (UNKNOWN,)
    assert subwords == learn_subwords(TEXTS, size=13)


def test_config():
    subwords = learn_subwords(TEXTS, size=13)
    again = Subwords.from_config(json.loads(json.dumps(subwords.to_config())))
    assert again == subwords and again.pieces == subwords.pieces and again.split("seas") == subwords.split("seas")
    for config in ({}, {"characters": ["a"], "merges": ["a"]}, {"characters": ["a"], "merges": ["a b"]}, []):
        with pytest.raises(InputError, match="sub-words"):
            Subwords.from_config(config)


def test_a_vocabulary_large_enough_has_every_word():
    subwords = learn_subwords(TEXTS, size=200)
    assert all(len(subwords.split(word)) == 1 for text in TEXTS for word in words(text))


def test_columns():
    subwords = learn_subwords(TEXTS, size=13)
    found = encode_subwords(["the sea the", "", "see"], subwords, length=2)
    sea = list(subwords.split("sea"))
    assert found["pieces"].tolist()[0] == [*subwords.split("the"), *sea]
    assert found["piece_count"].tolist() == [3, 1, 2] and (found["pieces"][1] == PADDING).all()
    assert encode_subwords([], subwords, length=2)["pieces"].shape == (0, 1)


def batch_of(texts, subwords, *, length=6):
    closed = most_frequent_words(texts, size=3 + SPECIAL)
    return {
        **encode_texts(texts, closed, length=length, spelled=False),
        **encode_subwords(texts, subwords, length=length),
    }


def network_of(subwords, *, seed=1):
    torch.manual_seed(seed)
    network = NextSubword(subwords, byte_dim=4, cells=5)
    with torch.no_grad():
        for value in network.parameters():
            value += torch.randn_like(value)
    return network.double()


def test_the_loss_of_a_word_is_that_of_its_pieces():
    subwords = learn_subwords(TEXTS, size=14)
    network, batch = network_of(subwords), batch_of(TEXTS, subwords)
    plain = NextWord(subwords.pieces, byte_dim=4, cells=5).double()
    plain.load_state_dict(network.state_dict())
    pieces = plain({"words": batch["pieces"], "length": batch["piece_count"]})[..., 0]
    with torch.no_grad():
        found = network(batch)[..., 0]
    for row, text in enumerate(TEXTS):
        start = 0
        for place, word in enumerate(words(text)):
            end = start + len(subwords.split(word))
            assert float(found[row, place]) == pytest.approx(float(pieces[row, start:end].sum().detach()))
            start = end
        assert found[row, len(words(text)) :].abs().sum() == 0


def test_many_clients_at_once():
    """Losses, gradients and ranks are those of every client by itself."""
    subwords = learn_subwords(TEXTS, size=14)
    network = network_of(subwords)
    texts = [["the sea", "see the"], ["tea", "a seas, the"]]
    width = max(batch_of(some, subwords)["pieces"].shape[1] for some in texts)
    batches = [batch_of(some, subwords) for some in texts]
    for one in batches:
        one["pieces"] = torch.nn.functional.pad(one["pieces"], (0, width - one["pieces"].shape[1]))
    batch = {name: torch.stack([one[name] for one in batches]) for name in batches[0]}
    own = [{name: value.detach() * factor for name, value in network.named_parameters()} for factor in (1.0, 0.7)]
    stacked = {name: torch.stack([one[name] for one in own]).requires_grad_() for name in own[0]}
    losses = network.stacked(stacked, batch)
    losses.sum().backward()
    with torch.no_grad():
        scored = network.stacked(stacked, batch)
    for client, parameters in enumerate(own):
        single = {name: value.clone().requires_grad_() for name, value in parameters.items()}
        expected = functional_call(network, single, (batches[client],))
        torch.testing.assert_close(losses[client], expected)
        expected.sum().backward()
        for name, value in single.items():
            torch.testing.assert_close(stacked[name].grad[client], value.grad, msg=name)
        with torch.no_grad():
            torch.testing.assert_close(scored[client], functional_call(network, parameters, (batches[client],)))


def test_ranks_in_a_text_are_those_among_all_words():
    """The slow oracle scores every word of at most four pieces after every beginning of a text."""
    subwords = learn_subwords(["a ab ab abab abab abab bab bb b ba"], size=9)
    network, longest, text = network_of(subwords, seed=6), 4, "b ab b bb abab b ba ab"
    network.subword_ranking.longest = longest
    known = subwords.pieces.known
    ends = [number for number, one in enumerate(known, SPECIAL) if one.endswith(MARK)]
    begins = [number for number in range(SPECIAL, SPECIAL + len(known)) if number not in ends]
    every = {
        "".join(known[number - SPECIAL] for number in pieces).removesuffix(MARK): pieces
        for count in range(longest)
        for pieces in product(*[begins] * count, ends)
    }
    every = {word: pieces for word in every if (pieces := subwords.split(word)) and len(pieces) <= longest}
    with torch.no_grad():
        found = network(batch_of([text], subwords, length=8))[0]
        for place, word in enumerate(words(text)):
            before = words(text)[:place]
            texts = [" ".join([*before, other]) for other in every]
            *_, losses = network.score(as_words(encode_subwords(texts, subwords, length=8)))
            first = sum(len(subwords.split(one)) for one in before)
            listed = dict(zip(every, (-losses[:, first:].sum(dim=1)).tolist(), strict=True))
            likelier = [other for other in every if other != word and listed[other] > listed[word]]
            assert found[place, 1] == min(len(likelier), SUGGESTED)
            typed = next(
                letters
                for letters in range(len(word) + 2)
                if letters > len(word) or sum(other.startswith(word[:letters]) for other in likelier) < SUGGESTED
            )
            assert found[place, 2] == max(len(word) - typed, 0)
            assert math.exp(-float(found[place, 0])) == pytest.approx(math.exp(listed[word]))
    assert len({rank for word, rank in zip(words(text), found[:, 1].tolist(), strict=True) if word == "b"}) > 1


def test_a_word_with_an_unknown_character_has_no_rank():
    subwords = learn_subwords(TEXTS, size=14)
    with torch.no_grad():
        found = network_of(subwords)(batch_of(["the zoo sea"], subwords))[0]
    assert found[1, 1] == NO_RANK and found[1, 2] == 0 and found[0, 1] >= 0


def test_words_of_one_piece_are_ranked_as_a_closed_vocabulary():
    """With a piece for every word and no others likely, ranks are those of the same network over words."""
    texts = ["the sea is blue", "the sky is blue"]
    whole = learn_subwords(texts, size=100)
    network = network_of(whole)
    with torch.no_grad():
        begins = [number for number, one in enumerate(whole.pieces.known, SPECIAL) if not one.endswith(MARK)]
        network.output.bias[[UNKNOWN, *begins]] = -1e9
        batch = batch_of(texts, whole)
        ends = [number for number, one in enumerate(whole.pieces.known, SPECIAL) if one.endswith(MARK)]
        logits = network.score(as_words(batch))[1][..., ends]
        found = network(batch)
    for row, text in enumerate(texts):
        for place, word in enumerate(words(text)):
            own = logits[row, place, ends.index(whole.split(word)[0])]
            assert found[row, place, 1] == min(int((logits[row, place] > own).sum()), SUGGESTED)
