"""Beam search gives the lists of the slow search, whatever the batch, the blocks and the threads."""

import math

import pytest
import torch
from oracle import BEGIN, END, Table, enumerate_all, make_recurrent, search

from homespun.core.errors import HomespunError, InputError, SettingsError
from homespun.decoding import division
from homespun.decoding.beam import beam_search

A, B = 2, 3
# after begin: a 0.5, b 0.4, end 0.1; after a: end 0.6, a 0.1, b 0.3; after b: end 0.7, a 0.2, b 0.1
SMALL = Table(torch.tensor([[0, 0.1, 0.5, 0.4], [0, 1, 0, 0], [0, 0.6, 0.1, 0.3], [0, 0.7, 0.2, 0.1]]))


def probabilities(hypotheses):
    return [(one.tokens, round(math.exp(one.log_prob), 6)) for one in hypotheses]


def assert_same(found, expected):
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    assert [one.log_prob for one in found] == pytest.approx([one.log_prob for one in expected], abs=1e-4)


def assert_as_slow(decoder, state, **settings):
    found = beam_search(decoder, state, **settings)
    assert len(found) == len(state[0])
    settings.pop("threads", None)
    for question, hypotheses in enumerate(found):
        one = tuple(part[question : question + 1] for part in state)
        assert_same(hypotheses, search(decoder, one, **settings))


def test_a_beam_of_one_by_hand():
    # a (0.5) stays, b does not; "a" ends with 0.5 * 0.6, "ab" with 0.5 * 0.3 * 0.7
    (found,) = beam_search(SMALL, SMALL.start(1), beam=1, max_length=2, n_best=5)
    assert probabilities(found) == [((A,), 0.3), ((A, B), 0.105)]
    (found,) = beam_search(SMALL, SMALL.start(1), beam=1, max_length=2)
    assert probabilities(found) == [((A,), 0.3)]


def test_a_beam_of_two_by_hand():
    # of ab 0.15, ba 0.08, aa 0.05 and bb 0.04, two stay; they end with 0.7 and 0.6
    (found,) = beam_search(SMALL, SMALL.start(1), beam=2, max_length=2, n_best=9)
    assert probabilities(found) == [((A,), 0.3), ((B,), 0.28), ((A, B), 0.105), ((B, A), 0.048)]


def test_empty_sequences_only_on_request():
    (found,) = beam_search(SMALL, SMALL.start(1), beam=2, max_length=1, n_best=9, min_length=0)
    assert probabilities(found) == [((A,), 0.3), ((B,), 0.28), ((), 0.1)]
    (found,) = beam_search(SMALL, SMALL.start(1), beam=2, max_length=2, n_best=9, min_length=2)
    assert probabilities(found) == [((A, B), 0.105), ((B, A), 0.048)]


def test_banned_words_are_not_written_and_the_others_keep_their_probability():
    decoder = Table(SMALL.chances, banned=(A,))
    (found,) = beam_search(decoder, decoder.start(1), beam=2, max_length=2)
    assert probabilities(found) == [((B,), 0.28), ((B, B), 0.028)]


def test_ties_go_to_the_better_parent_then_to_the_smaller_word_and_to_the_shorter_sequence():
    # each word follows with 1/4: all sequences of one length tie
    even = Table(torch.full((4, 4), 0.25), banned=(BEGIN,))
    (found,) = beam_search(even, even.start(1), beam=3, max_length=2, n_best=9)
    assert [one.tokens for one in found] == [(A,), (B,), (A, A), (A, B), (B, A)]
    # "a" has 1 * 0.25, "ab" has 1 * 0.5 * 0.5
    chances = torch.tensor([[0, 0, 1, 0], [0, 1, 0, 0], [0, 0.25, 0.25, 0.5], [0, 0.5, 0.5, 0]])
    (found,) = beam_search(Table(chances), SMALL.start(1), beam=1, max_length=2, n_best=2)
    assert probabilities(found) == [((A,), 0.25), ((A, B), 0.25)]
    (found,) = beam_search(Table(chances), SMALL.start(1), beam=1, max_length=2, n_best=1)
    assert probabilities(found) == [((A,), 0.25)]


def test_permutations_tie_in_both_searches():
    generator = torch.Generator().manual_seed(3)
    row = torch.rand(7, generator=generator)
    decoder = Table((row / row.sum()).expand(7, 7), banned=(BEGIN,))
    for beam in (1, 3, 7):
        assert_as_slow(decoder, decoder.start(2), beam=beam, max_length=4, n_best=40)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("vocabulary, beam, max_length", [(4, 1, 3), (5, 3, 4), (9, 9, 3), (30, 7, 6), (300, 20, 3)])
def test_random_decoders(seed, vocabulary, beam, max_length):
    decoder = make_recurrent(vocabulary, seed=seed, end_bias=seed - 2.0)
    state = decoder.start(range(5))
    for n_best, min_length in ((None, 1), (1, 1), (2, 0), (5 * beam, 2)):
        assert_as_slow(decoder, state, beam=beam, max_length=max_length, n_best=n_best, min_length=min_length)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("questions", [1, 4])
def test_blocks_batches_and_threads_change_nothing(monkeypatch, threads, questions):
    decoder = make_recurrent(40, seed=11, spread=0.7)
    state = decoder.start(range(questions))
    whole = beam_search(decoder, state, beam=12, max_length=5)
    monkeypatch.setattr(division, "BLOCK_ROWS", 10)
    monkeypatch.setattr(division, "BATCH_ROWS", 24)
    assert_as_slow(decoder, state, beam=12, max_length=5, threads=threads)
    cut = beam_search(decoder, state, beam=12, max_length=5, threads=threads)
    for one, other in zip(whole, cut, strict=True):
        assert_same(one, other)


def test_questions_with_unequal_numbers_of_hypotheses_share_a_block():
    # confident ends, at different lengths: some beams are empty while others are full
    decoder = make_recurrent(12, seed=5, spread=2.5, end_bias=3.0)
    assert_as_slow(decoder, decoder.start(range(30)), beam=6, max_length=6, n_best=3)


@pytest.mark.parametrize("seed", range(3))
def test_a_large_beam_finds_every_sequence(seed):
    # 3 words in up to 3 places: 39 sequences, 27 of them of the last length
    decoder = make_recurrent(50, seed=seed, banned=(BEGIN, *range(5, 50)))
    state = decoder.start([seed])
    everything = enumerate_all(decoder, state, max_length=3)
    assert len(everything) == 39
    (found,) = beam_search(decoder, state, beam=27, max_length=3, n_best=100)
    assert_same(found, everything)
    (found,) = beam_search(decoder, state, beam=50, max_length=3, n_best=7)
    assert_same(found, everything[:7])


class Counting:
    """A decoder that counts the rows that it reads."""

    def __init__(self, decoder):
        self.decoder, self.rows = decoder, []
        self.begin, self.end, self.banned = decoder.begin, decoder.end, decoder.banned
        self.vocabulary = decoder.vocabulary

    def step(self, tokens, state):
        self.rows.append(len(tokens))
        return self.decoder.step(tokens, state)


def test_hypotheses_that_cannot_win_are_not_extended():
    # "a" and "b" end with 0.3 and 0.28: no sequence of two words begins with more than 0.15
    counting = Counting(SMALL)
    beam_search(counting, SMALL.start(3), beam=2, max_length=20)
    assert counting.rows == [3, 6]
    # the third best is "ab" with 0.105 after the third step; then "aba" and "bab" begin with less than 0.048
    counting = Counting(SMALL)
    beam_search(counting, SMALL.start(1), beam=2, max_length=20, n_best=4)
    assert counting.rows == [1, 2, 2]


def test_no_sequence_of_enough_words_gives_an_empty_list():
    only_end = Table(torch.tensor([[0, 1.0, 0], [0, 1, 0], [0, 1, 0]]))
    assert beam_search(only_end, only_end.start(2), beam=2, max_length=3) == [[], []]
    assert beam_search(SMALL, SMALL.start(0), beam=2, max_length=3) == []


def test_the_state_and_the_logits_are_not_changed():
    decoder = make_recurrent(10, seed=1)
    state = decoder.start([0, 1])
    before = [part.clone() for part in state]
    kept = []

    def step(tokens, state):
        logits, after = decoder.step(tokens, state)
        kept.append((logits, logits.clone()))
        return logits, after

    watched = Counting(decoder)
    watched.step = step
    beam_search(watched, state, beam=3, max_length=3)
    assert all(torch.equal(one, other) for one, other in zip(state, before, strict=True))
    assert len(kept) == 4 and all(torch.equal(one, other) for one, other in kept)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("questions", [1, 3])
def test_no_gradients_are_recorded_in_any_thread(monkeypatch, threads, questions):
    monkeypatch.setattr(division, "BATCH_ROWS", 4)
    decoder = make_recurrent(10, seed=1)
    decoder.out.requires_grad_()
    tracked = []

    def step(tokens, state):
        logits, after = decoder.step(tokens, state)
        tracked.append(logits.requires_grad)
        return logits, after

    watched = Counting(decoder)
    watched.step = step
    beam_search(watched, decoder.start(range(questions)), beam=4, max_length=2, threads=threads)
    assert len(tracked) == 3 * questions and not any(tracked)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"beam": 0}, "beam is 0, expected at least 1"),
        ({"beam": 5}, "beam is 5, larger than the vocabulary of 4. Set beam to 4 or less"),
        ({"max_length": 0}, "max_length is 0"),
        ({"min_length": 4}, "min_length is 4, expected 0 to max_length = 3"),
        ({"n_best": 0}, "n_best is 0"),
        ({"threads": 0}, "threads is 0"),
        ({"beam": 0, "max_length": 0}, "2 faults"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(SettingsError, match=message):
        beam_search(SMALL, SMALL.start(1), **{"beam": 2, "max_length": 3, **settings})


def test_wrong_decoders():
    with pytest.raises(SettingsError, match="the end word 1 is banned"):
        beam_search(Table(SMALL.chances, banned=(END,)), SMALL.start(1), beam=2, max_length=3)
    with pytest.raises(SettingsError, match="banned word 4 is 4, expected a word below the vocabulary of 4"):
        beam_search(Table(SMALL.chances, banned=(4,)), SMALL.start(1), beam=2, max_length=3)
    with pytest.raises(InputError, match="one row per question"):
        beam_search(SMALL, (), beam=2, max_length=3)
    with pytest.raises(InputError, match=r"one row per question, found \(2,\), \(3,\)"):
        beam_search(SMALL, (torch.zeros(2), torch.zeros(3)), beam=2, max_length=3)
    broken = Table(SMALL.chances * torch.nan)
    with pytest.raises(HomespunError, match="NaN or infinite"):
        beam_search(broken, broken.start(1), beam=2, max_length=3)
