"""Groups of beams avoid the words of earlier groups, as in the slow search."""

import math

import pytest
import torch
from oracle import BEGIN, Table, make_recurrent, search_diverse

from homespun.core.errors import SettingsError
from homespun.decoding import division
from homespun.decoding.beam import beam_search
from homespun.decoding.diverse import diverse_beam_search

A, B, C = 2, 3, 4
# after begin: a 0.6, b 0.3, c 0.1; then each word ends with 0.5, 0.4, 0.2, or is followed by itself
CHANCES = torch.tensor(
    [[0, 0, 0.6, 0.3, 0.1], [0, 1, 0, 0, 0], [0, 0.5, 0.5, 0, 0], [0, 0.4, 0, 0.6, 0], [0, 0.2, 0, 0, 0.8]]
)
SMALL = Table(CHANCES, banned=(BEGIN,))


def probabilities(hypotheses):
    return [(one.tokens, round(math.exp(one.log_prob), 6)) for one in hypotheses]


def assert_same(found, expected):
    assert [[one.tokens for one in some] for some in found] == [[one.tokens for one in some] for some in expected]
    for some, others in zip(found, expected, strict=True):
        assert [one.log_prob for one in some] == pytest.approx([one.log_prob for one in others], abs=1e-4)


def assert_as_slow(decoder, state, *, threads=1, **settings):
    one_by_one = [
        search_diverse(decoder, tuple(part[one : one + 1] for part in state), **settings)
        for one in range(len(state[0]))
    ]
    assert_same(diverse_beam_search(decoder, state, threads=threads, **settings), one_by_one)


def test_by_hand():
    # the second group avoids a if the penalty exceeds log(0.6 / 0.3) = 0.69
    def best(diversity, groups=2):
        settings = {"beam": groups, "groups": groups, "diversity": diversity, "max_length": 1}
        return probabilities(diverse_beam_search(SMALL, SMALL.start(1), **settings)[0])

    assert best(0.69) == [((A,), 0.3)]
    assert best(0.7) == [((A,), 0.3), ((B,), 0.12)]
    # of three groups, the third sees a once and b once: c needs a penalty above log(0.6 / 0.1) = 1.79
    assert best(1.78, groups=3) == [((A,), 0.3), ((B,), 0.12)]
    assert best(1.80, groups=3) == [((A,), 0.3), ((B,), 0.12), ((C,), 0.02)]


def test_hypotheses_of_one_group_count_one_by_one():
    # the first group chooses a and b, the second one c and, again, a
    found = diverse_beam_search(SMALL, SMALL.start(1), beam=4, groups=2, diversity=5.0, max_length=1, n_best=4)
    assert probabilities(found[0]) == [((A,), 0.3), ((B,), 0.12), ((C,), 0.02)]
    # two groups choose a; the third one chooses b, since 2 * 1.2 exceeds log(0.9 / 0.1) = 2.2
    twice = Table(torch.tensor([[0, 0, 0.9, 0.1], [0, 1, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0]]), banned=(BEGIN,))
    found = diverse_beam_search(twice, twice.start(1), beam=3, groups=3, diversity=1.2, max_length=1)
    assert probabilities(found[0]) == [((A,), 0.9), ((B,), 0.1)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("diversity", [0.0, 0.4, 3.0])
@pytest.mark.parametrize(
    "vocabulary, beam, groups, max_length", [(6, 4, 2, 4), (9, 9, 3, 3), (30, 6, 6, 5), (300, 8, 2, 3)]
)
def test_random_decoders(seed, diversity, vocabulary, beam, groups, max_length):
    decoder = make_recurrent(vocabulary, seed=seed, end_bias=seed - 1.0)
    settings = {"beam": beam, "groups": groups, "diversity": diversity, "max_length": max_length}
    state = decoder.start(range(4))
    for n_best, min_length in ((None, 1), (groups, 0), (groups * 4, 2)):
        assert_as_slow(decoder, state, n_best=n_best, min_length=min_length, **settings)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("questions", [1, 5])
def test_blocks_batches_and_threads_change_nothing(monkeypatch, threads, questions):
    monkeypatch.setattr(division, "BLOCK_ROWS", 10)
    monkeypatch.setattr(division, "BATCH_ROWS", 24)
    decoder = make_recurrent(40, seed=11, spread=0.7)
    settings = {"beam": 12, "groups": 3, "diversity": 0.5, "max_length": 5}
    assert_as_slow(decoder, decoder.start(range(questions)), threads=threads, **settings)


def test_one_group_or_no_diversity_is_beam_search():
    decoder = make_recurrent(30, seed=2, end_bias=1.0)
    state = decoder.start(range(3))
    whole = diverse_beam_search(decoder, state, beam=12, groups=1, diversity=0.8, max_length=4, n_best=10)
    assert_same(whole, beam_search(decoder, state, beam=12, max_length=4, n_best=10))
    same = diverse_beam_search(decoder, state, beam=12, groups=4, diversity=0.0, max_length=4, n_best=8)
    assert_same(same, beam_search(decoder, state, beam=3, max_length=4, n_best=2))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"groups": 3}, "beam is 4, expected a multiple of groups = 3"),
        ({"n_best": 3}, "n_best is 3, expected a multiple of groups = 2"),
        ({"groups": 0}, "groups is 0, expected at least 1"),
        ({"diversity": -1.0}, "diversity is -1.0, expected 0 or more"),
        ({"diversity": math.nan}, "diversity is nan"),
        ({"beam": 6}, "larger than the vocabulary of 5"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(SettingsError, match=message):
        diverse_beam_search(
            SMALL, SMALL.start(1), **{"beam": 4, "groups": 2, "diversity": 1.0, "max_length": 2, **settings}
        )
