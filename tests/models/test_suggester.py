"""Suggestions one keystroke at a time are those of the whole model."""

import numpy as np
import pytest
import torch
from torch.func import functional_call

from homespun.models.next_word import FROM_SPELLING, FROM_UNKNOWN, NextWord, spell_words
from homespun.models.suggester import Suggester
from homespun.models.vocabulary import SPECIAL, UNKNOWN, Vocabulary
from homespun.models.word_adapter import new_adapter

WORDS = Vocabulary(("the", "sea", "is", "see", "seen", "zürich"))
OWN = ["seaweed", "😀", "ada"]


@pytest.fixture(params=[(), (5,), (7,), None], ids=["identity", "adapter", "shared adapter", "no words"])
def model(request):
    torch.manual_seed(1)
    network = NextWord(WORDS, byte_dim=5, cells=6, lexicon=True, prior=(7,) if request.param == (7,) else ())
    parameters = {
        name: value.detach() + 0.3 * torch.randn_like(value)
        for name, value in network.named_parameters()
        if value.is_floating_point()
    }
    hidden = request.param
    parameters["own.lexicon"] = spell_words([] if hidden is None else [word.encode() for word in OWN])
    parameters["own.counts"] = torch.arange(len(parameters["own.lexicon"]))
    parameters["own.unknowns"] = torch.tensor([9])
    parameters["own.start"] = torch.tensor([FROM_SPELLING if request.param == () else FROM_UNKNOWN])
    parameters["own.hidden"] = torch.tensor(hidden or (), dtype=torch.int64)
    adapter = (
        new_adapter(hidden, cells=6, scale=0.5, generator=torch.Generator().manual_seed(2)) if hidden == (5,) else None
    )
    parameters["own.adapter"] = torch.zeros(0) if adapter is None else adapter
    return network, parameters


def test_probabilities_are_those_of_the_model(model):
    """exp(-loss) of every word that can follow, relative to their sum."""
    network, parameters = model
    suggester = Suggester(WORDS, parameters)
    typed = suggester.read_all(["the", "unheard", "sea"])
    own = len(parameters["own.lexicon"])
    assert suggester.words == (*WORDS.known, *OWN[:own])
    losses = []
    for place in range(len(suggester.words)):
        known = place < len(WORDS.known)
        words = torch.tensor([[4, UNKNOWN, 5, SPECIAL + place if known else UNKNOWN]])
        places = torch.tensor([[-1, -1, -1, -1 if known else place - len(WORDS.known)]])
        batch = {"words": words, "length": torch.tensor([4]), "own": places}
        with torch.no_grad():
            losses.append(float(functional_call(network, parameters, (batch,))[0, 3, 0]))
    # padding and the like take part in the model's softmax and cannot be suggested
    expected = np.exp(-np.array(losses)) / np.exp(-np.array(losses)).sum()
    found = {one.word: one for one in suggester.suggest(typed, k=99)}
    assert [found[word].probability for word in suggester.words] == pytest.approx(expected.tolist(), rel=1e-4)
    assert [one.word for one in suggester.suggest(typed, k=3)] == [
        suggester.words[place] for place in np.argsort(losses, kind="stable")[:3]
    ]
    assert {word for word, one in found.items() if one.own} == set(OWN[:own])


def test_what_is_typed_limits_the_suggestions(model):
    suggester = Suggester(WORDS, model[1])
    own = bool(len(model[1]["own.lexicon"]))
    found = suggester.suggest(suggester.start, "se", k=9)
    assert {one.word for one in found} == {"sea", "see", "seen", *(["seaweed"] if own else [])}
    assert sum(one.probability for one in found) == pytest.approx(1)
    assert [one.word for one in suggester.suggest(suggester.start, "zü")] == ["zürich"]
    assert [one.word for one in suggester.suggest(suggester.start, "😀")] == (["😀"] if own else [])
    assert suggester.suggest(suggester.start, "qq") == []


def test_words_that_are_added_are_suggested_as_if_they_had_been_there(model):
    with_all = {**model[1], "own.counts": torch.zeros(len(model[1]["own.lexicon"]), dtype=torch.int64)}
    some = {**with_all, **{name: with_all[name][:1] for name in ("own.lexicon", "own.counts")}}
    words = OWN[1:] if len(with_all["own.lexicon"]) else []
    grown, whole = Suggester(WORDS, some).with_words(words, counts=[0] * len(words)), Suggester(WORDS, with_all)
    assert grown.words == whole.words
    assert grown.suggest(grown.read_all(["the"]), k=99) == whole.suggest(whole.read_all(["the"]), k=99)


def test_new_words_need_an_adapter_or_the_unknown_word(model, request):
    assert Suggester(WORDS, model[1]).learns == (request.node.callspec.id != "identity")
