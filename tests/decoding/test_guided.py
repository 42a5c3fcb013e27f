"""Guided decoding: exact probabilities of a decoder with three words whose logits are its persona."""

from dataclasses import dataclass
from math import log

import pytest
import torch

from homespun.decoding.beam import beam_search
from homespun.decoding.guided import GuidedDecoder

EQUAL = torch.zeros(3)
OWN = torch.tensor([[0.0, log(2), log(3)]])


@dataclass(frozen=True)
class PersonaDecoder:
    """Every step has the row's persona as logits. Word 0 ends a sequence."""

    begin = end = 0
    vocabulary = 3
    banned = ()

    def start(self, inputs, personas=None):
        return (personas,)

    def step(self, tokens, state):
        return state[0], state


def first_words(strength, *, neutral=EQUAL):
    guided = GuidedDecoder(PersonaDecoder(), neutral, strength)
    logits, state = guided.step(torch.tensor([0]), guided.start([[1]], OWN))
    assert len(state) == 2
    return (6 * logits.softmax(dim=1))[0].tolist()


def test_the_persona_is_exaggerated():
    """1 : 2 : 3 becomes 1 : 4 : 9 with strength 2."""
    assert first_words(1) == pytest.approx([1, 2, 3])
    assert first_words(0) == pytest.approx([2, 2, 2])
    assert first_words(2) == pytest.approx([6 / 14, 24 / 14, 54 / 14])


def test_it_moves_away_from_the_neutral_persona():
    """Against 1 : 2 : 1, the persona has 1 : 1 : 3 times the odds; with strength 2 they are squared."""
    assert first_words(2, neutral=torch.tensor([0.0, log(2), 0.0])) == pytest.approx([0.5, 1.0, 4.5])


def test_a_search_scores_the_guided_distribution():
    guided = GuidedDecoder(PersonaDecoder(), EQUAL, 2)
    (found,) = beam_search(guided, guided.start([[1]], OWN), beam=3, n_best=3, max_length=1, min_length=1)
    assert [one.tokens for one in found] == [(2,), (1,)]
    assert found[0].log_prob == pytest.approx(log(9 / 14) + log(1 / 14))
