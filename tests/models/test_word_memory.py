"""Memories of what a user typed, by hand."""

import math

import pytest
import torch

from homespun.models.next_word import UNSCORED, NextWord, shift
from homespun.models.suggestion_ranks import NO_RANK, NOTHING, Ranking
from homespun.models.vocabulary import BEGIN, PADDING, SPECIAL, UNKNOWN, Vocabulary
from homespun.models.word_memory import cache_probabilities, contexts_of, neighbour_probabilities, remembered

A, B, C = SPECIAL, SPECIAL + 1, SPECIAL + 2
TYPED = torch.tensor([[A, B, A, B], [A, C, PADDING, PADDING], [UNKNOWN, A, PADDING, PADDING]])


def test_the_words_before():
    assert contexts_of(TYPED)[0].tolist() == [[BEGIN, BEGIN], [BEGIN, A], [A, B], [B, A]]
    assert contexts_of(TYPED)[2, 1].tolist() == [BEGIN, UNKNOWN]


def test_frequencies():
    """Of seven words that are known, four are `a`, two `b`, one `c`."""
    found = cache_probabilities(TYPED, torch.tensor([[BEGIN, BEGIN], [A, C]]), order=1, words=8)
    assert found[0].tolist() == found[1].tolist() == pytest.approx([0, 0, 0, 0, 4 / 7, 2 / 7, 1 / 7, 0])


def test_frequencies_after_two_words():
    """`a` is followed by `b` twice and by `c` once; `b a` by `b` once."""
    found = cache_probabilities(TYPED, torch.tensor([[B, A], [C, C]]), order=3, words=8)
    p2 = [(0 + 4 / 7) / 4, (2 + 2 / 7) / 4, (1 + 1 / 7) / 4]
    assert found[0, A : C + 1].tolist() == pytest.approx([p2[0] / 2, (1 + p2[1]) / 2, p2[2] / 2])
    assert found[1, A : C + 1].tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7])  # nothing follows `c`
    assert found.sum(dim=1).tolist() == pytest.approx([1, 1])


def test_neighbours():
    """One at distance 1 and two at distance 2."""
    keys, after = torch.tensor([[1.0], [2.0], [2.0]]), torch.tensor([A, B, B])
    found = neighbour_probabilities(keys, after, torch.zeros(1, 1), scale=0.5, words=7)
    kernel = [math.exp(-1 / (0.5 * 3)), 2 * math.exp(-4 / (0.5 * 3))]  # the mean of 1, 4 and 4 is 3
    assert found[0, A : B + 1].tolist() == pytest.approx([one / sum(kernel) for one in kernel])
    assert not neighbour_probabilities(keys[:0], after[:0], torch.zeros(2, 1), scale=1.0, words=7).any()


def test_interpolation():
    logits = torch.tensor([[0.0, 0, 0, 0, math.log(2), 0]]).expand(4, 6)  # 1/7 each, 2/7
    memory = torch.tensor([[0.0, 0, 0, 0, 0, 1]]).expand(4, 6)
    ranking = Ranking(("the", "sea"), first=SPECIAL)
    targets = torch.tensor([4, 5, UNKNOWN, NOTHING])
    found = remembered(logits, targets, memory, weight=torch.tensor(0.5), ranking=ranking)
    assert found[:, 1].tolist() == [1, 0, NO_RANK, 0] and float(found[3, 0]) == 0
    assert found[:3, 0].tolist() == pytest.approx([-math.log(1 / 7), -math.log(0.5 + 0.5 / 7), -math.log(0.5 / 7)])


@pytest.mark.parametrize("memory", ["cache", "neighbours"])
def test_a_model_with_a_memory(memory):
    """With all the weight, the memory alone decides; the word after `the` was `sea` twice and `zürich` once. An own
    word that the model does not score is suggested all the same."""
    torch.manual_seed(0)
    words = Vocabulary(("the", "sea", "is"))
    network = NextWord(words, byte_dim=5, cells=6, lexicon=True, memory=memory)
    own = SPECIAL + 3
    typed = torch.tensor([[4, 5, 6], [4, 5, PADDING], [4, own, PADDING]])
    network.own["lexicon"] = torch.nn.Parameter(
        torch.ones(1, network.spelling.shape[1], dtype=torch.uint8), requires_grad=False
    )
    network.own["hidden"] = torch.nn.Parameter(torch.tensor(UNSCORED), requires_grad=False)
    batch = {
        "words": torch.tensor([[4, 5], [4, UNKNOWN]]),
        "length": torch.tensor([2, 2]),
        "own": torch.tensor([[-1, -1], [-1, 0]]),
    }
    with torch.no_grad():
        plain = network(batch)
        assert plain[1, 1, 0] > 20  # an own word without a memory
        network.own["typed"] = torch.nn.Parameter(typed, requires_grad=False)
        scale = 3.0 if memory == "cache" else 0.01
        network.own["memory"] = torch.nn.Parameter(torch.tensor([0.9999, scale]), requires_grad=False)
        found = network(batch)
        parameters = {name: value[None] for name, value in network.named_parameters()}
        stacked = network.stacked(parameters, {name: value[None] for name, value in batch.items()})
    assert found[0, 1, 1] == 0 and found[1, 1, 1] == 1  # sea, then zürich
    assert found[1, 1, 0] < 2
    torch.testing.assert_close(stacked[0], found)
    inputs, _ = shift(batch["words"], batch["length"])
    assert inputs.tolist() == [[BEGIN, 4], [BEGIN, 4]]
