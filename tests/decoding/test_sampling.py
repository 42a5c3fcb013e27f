"""Sequences drawn word by word: frequencies, limits, and the same sequences for the same seed."""

import math
from collections import Counter

import pytest
import torch
from oracle import BEGIN, Table, enumerate_all, make_recurrent

from homespun.core.errors import SettingsError
from homespun.decoding import division
from homespun.decoding.sampling import greedy, sample

A, B = 2, 3
# after begin: a 0.5, b 0.4, end 0.1; after a: end 0.6, a 0.1, b 0.3; after b: end 0.7, a 0.2, b 0.1
SMALL = Table(torch.tensor([[0, 0.1, 0.5, 0.4], [0, 1, 0, 0], [0, 0.6, 0.1, 0.3], [0, 0.7, 0.2, 0.1]]))


def shares(hypotheses):
    counts = Counter(one.tokens for one in hypotheses)
    return {tokens: count / len(hypotheses) for tokens, count in counts.items()}


def test_frequencies_are_the_models():
    (drawn,) = sample(SMALL, SMALL.start(1), samples=4000, max_length=9, min_length=0, seed=1)
    found = shares(drawn)
    # a 0.5 * 0.6, b 0.4 * 0.7, ab 0.5 * 0.3 * 0.7; four standard deviations are at most 0.029
    expected = {(A,): 0.3, (B,): 0.28, (): 0.1, (A, B): 0.105, (B, A): 0.048}
    assert {tokens: found[tokens] for tokens in expected} == pytest.approx(expected, abs=0.029)
    assert all(math.exp(one.log_prob) == pytest.approx(expected[one.tokens]) for one in drawn if one.tokens in expected)


def test_temperature_top_k_and_top_p_by_hand():
    def first_words(**settings):
        (drawn,) = sample(SMALL, SMALL.start(1), samples=3000, max_length=1, min_length=0, seed=2, **settings)
        models = {(A,): 0.3, (B,): 0.28, (): 0.1}
        assert all(math.exp(one.log_prob) == pytest.approx(models[one.tokens]) for one in drawn)
        return shares(drawn)

    # temperature 0.5 squares the probabilities: 25, 16 and 1 of 42
    assert first_words(temperature=0.5) == pytest.approx({(A,): 25 / 42, (B,): 16 / 42, (): 1 / 42}, abs=0.036)
    assert first_words(top_k=2) == pytest.approx({(A,): 5 / 9, (B,): 4 / 9}, abs=0.036)
    assert first_words(top_p=0.6) == pytest.approx({(A,): 5 / 9, (B,): 4 / 9}, abs=0.036)
    assert first_words(top_p=0.4) == {(A,): 1.0}
    assert first_words(top_k=1) == {(A,): 1.0}


def test_greedy_takes_the_likeliest_word_and_in_a_tie_the_smaller_one():
    # a (0.5), then end (0.6); with two words at least: b (0.3) instead of end, then end (0.7)
    assert [one.tokens for one in greedy(SMALL, SMALL.start(2), max_length=5)] == [(A,), (A,)]
    (two,) = greedy(SMALL, SMALL.start(1), max_length=5, min_length=2)
    assert two.tokens == (A, B) and math.exp(two.log_prob) == pytest.approx(0.105)
    even = Table(torch.full((4, 4), 0.25), banned=(BEGIN,))
    assert greedy(even, even.start(1), max_length=3, min_length=2)[0].tokens == (A, A)


def test_a_sequence_of_the_maximum_length_ends_there_and_its_end_counts():
    chances = torch.tensor([[0, 0, 1.0, 0], [0, 1, 0, 0], [0, 0.2, 0.8, 0], [0, 1, 0, 0]])
    (one,) = greedy(Table(chances), SMALL.start(1), max_length=3)
    assert one.tokens == (A, A, A) and math.exp(one.log_prob) == pytest.approx(0.8**2 * 0.2)


def test_banned_words_and_ends_before_the_minimum_are_not_drawn():
    decoder = Table(SMALL.chances, banned=(A,))
    (drawn,) = sample(decoder, decoder.start(1), samples=200, max_length=4, min_length=2)
    assert {len(one.tokens) for one in drawn} == {2, 3, 4}  # 7/8, 7/64 and 1/64 of the samples
    assert {word for one in drawn for word in one.tokens} == {B}
    only_end = Table(torch.tensor([[0, 1.0, 0], [0, 1, 0], [0, 1, 0]]))
    assert [one.tokens for one in sample(only_end, only_end.start(1), samples=2, max_length=4)[0]] == [(), ()]


def test_log_probabilities_are_those_of_an_enumeration():
    decoder = make_recurrent(6, seed=4)
    state = decoder.start([7])
    known = {one.tokens: one.log_prob for one in enumerate_all(decoder, state, max_length=3)}
    (drawn,) = sample(decoder, state, samples=60, max_length=3, temperature=2.0)
    assert len({one.tokens for one in drawn}) > 10
    assert [one.log_prob for one in drawn] == pytest.approx([known[one.tokens] for one in drawn], abs=1e-4)


def test_the_seed_decides_and_neither_batch_nor_threads_nor_number_of_samples(monkeypatch):
    decoder = make_recurrent(30, seed=3, spread=0.6)
    state = decoder.start(range(4))

    def draw(state=state, samples=5, **settings):
        return [
            [one.tokens for one in some] for some in sample(decoder, state, samples=samples, max_length=6, **settings)
        ]

    whole = draw(seed=1)
    assert len({tokens for some in whole for tokens in some}) == 20
    assert draw(seed=1) == whole and draw(seed=2) != whole
    assert draw(seed=1, samples=2) == [some[:2] for some in whole]
    assert draw(tuple(part[:2] for part in state), seed=1) == whole[:2]
    monkeypatch.setattr(division, "BLOCK_ROWS", 6)
    monkeypatch.setattr(division, "BATCH_ROWS", 10)
    assert draw(seed=1) == draw(seed=1, threads=2) == whole
    assert draw(tuple(part[:1] for part in state), seed=1, threads=2) == whole[:1]


def test_questions_with_the_same_state_get_different_samples():
    even = Table(torch.full((50, 50), 0.02), banned=(BEGIN,))
    first, second = sample(even, even.start(2), samples=3, max_length=5)
    assert not {one.tokens for one in first} & {one.tokens for one in second}


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"samples": 0}, "samples is 0, expected at least 1"),
        ({"max_length": 0}, "max_length is 0"),
        ({"temperature": -1.0}, "temperature is -1.0, expected 0 or more"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": 0.0, "samples": 2}, "temperature 0 always gives the same sequence: set samples = 1"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0, expected more than 0 and at most 1"),
        ({"top_p": 1.5, "threads": 0}, "2 faults"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(SettingsError, match=message):
        sample(SMALL, SMALL.start(1), **{"samples": 1, "max_length": 2, **settings})
