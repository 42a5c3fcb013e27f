"""Ranks of words among all that pieces can spell, against a list of all of them."""

import math
from itertools import product

import pytest
import torch

from homespun.models import subword_ranks
from homespun.models.subword_ranks import Progress, SortedPieces, SubwordRanking, Target, shared_letters
from homespun.models.subwords import MARK, Subwords, learn_subwords
from homespun.models.suggestion_ranks import SUGGESTED
from homespun.models.vocabulary import SPECIAL

LONGEST = 4


class Chain:
    """Predicts a piece from the one before it. States are [hypotheses, 1]: the last piece."""

    def __init__(self, pieces, *, seed, sharpness):
        generator = torch.Generator().manual_seed(seed)
        self.table = (sharpness * torch.randn(pieces, pieces, generator=generator)).log_softmax(dim=1)

    def advance(self, states, pieces):
        return pieces[:, None]

    def log_probs(self, states):
        return self.table[states[:, 0]]


def small_subwords():
    """Pieces for words of a and b, of which some words have several splits."""
    return learn_subwords(["a ab ab abab abab abab bab bb b ba", "abba abba"], size=11)


def every_word(subwords, model, state):
    """The slow oracle: each word of at most LONGEST pieces with the log-probability of the pieces it is split into."""
    known = subwords.pieces.known
    ends = [number for number, text in enumerate(known, SPECIAL) if text.endswith(MARK)]
    begins = [number for number in range(SPECIAL, SPECIAL + len(known)) if number not in ends]
    found = {}
    for count in range(LONGEST):
        for pieces in product(*[begins] * count, ends):
            word = "".join(known[number - SPECIAL] for number in pieces).removesuffix(MARK)
            if subwords.split(word) != pieces:
                continue
            log_prob, at = 0.0, torch.tensor([[state]])
            for number in pieces:
                log_prob += float(model.log_probs(at)[0, number])
                at = model.advance(at, torch.tensor([number]))
            found[word] = log_prob
    return found


def listed_result(listed, target):
    """Rank and saved letters of a target by the list of all words."""
    likelier = [word for word, log_prob in listed.items() if log_prob > target.log_prob]
    typed = next(
        letters
        for letters in range(len(target.word) + 2)
        if letters > len(target.word) or sum(word.startswith(target.word[:letters]) for word in likelier) < SUGGESTED
    )
    return min(len(likelier), SUGGESTED), max(len(target.word) - typed, 0)


def searches(subwords, model):
    """What a search finds of each word after each piece, and what the list does."""
    ranking = SubwordRanking(subwords, longest=LONGEST)
    for state in range(len(subwords.pieces)):
        listed = every_word(subwords, model, state)
        targets = [Target(word, log_prob) for word, log_prob in listed.items()]
        for one in ranking.search(model, torch.full((len(targets), 1), state), targets):
            yield one, listed_result(listed, one.target)


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 3.0])
def test_ranks_and_letters_are_those_of_the_list_of_all_words(sharpness):
    subwords = small_subwords()
    model = Chain(len(subwords.pieces), seed=0, sharpness=sharpness)
    found = list(searches(subwords, model))
    assert all(one.exact and one.found() == expected for one, expected in found)
    assert len(found) > 1000 and {rank for _, (rank, _) in found} == {0, 1, 2, 3}
    every = every_word(subwords, model, 0)
    assert sum(map(math.exp, every.values())) < 1  # the rest are other splits, and longer words


def test_a_search_that_leaves_out_too_much_is_a_miss(monkeypatch):
    """With few beginnings, a search finds what the list says, or that it may not: then the word is not suggested."""
    monkeypatch.setattr(subword_ranks, "MOST", 6)
    subwords = small_subwords()
    found = list(searches(subwords, Chain(len(subwords.pieces), seed=0, sharpness=1.0)))
    assert all(one.found() == (expected if one.exact else (SUGGESTED, 0)) for one, expected in found)
    assert 100 < sum(not one.exact for one, _ in found) < len(found) - 1000


def test_other_splits_of_a_word_do_not_count():
    """`ab` may be `a b_`, but is split as `ab_`: the word that two pieces spell is no other word."""
    subwords = Subwords(("a", "b_", "c_"), (("a", "b_"),))
    assert subwords.split("ab") == (7,) and subwords.split("c") == (6,)
    logits = torch.full((8, 8), -20.0)
    logits[0, [4, 7, 6]] = torch.tensor([3.0, 1.0, 0.0])  # `a` is likeliest at first, and `b_` after it
    logits[4, 5] = 3.0
    model = Chain(8, seed=0, sharpness=0.0)
    model.table = logits.log_softmax(dim=1)
    target = Target("c", float(model.table[0, 6]))
    assert SubwordRanking(subwords)(model, torch.zeros(1, 1, dtype=torch.int64), [target]).tolist() == [[1, 1]]


def test_a_piece_that_a_word_is_not_split_into_does_not_count():
    """`abc` is `ab c_`, though `abc_` is a piece."""
    subwords = Subwords(("a", "b", "c_", "d_"), (("a", "b"), ("b", "c_"), ("a", "bc_")))
    assert subwords.pieces.spell(subwords.split("abc")) == ["ab", "c_"] and "abc_" in subwords.pieces.index
    model = Chain(len(subwords.pieces), seed=0, sharpness=0.0)
    logits = torch.zeros_like(model.table)
    logits[0, [subwords.pieces.index[one] for one in ("abc_", "c_", "d_")]] = torch.tensor([9.0, 8.0, 7.0])
    model.table = logits.log_softmax(dim=1)
    target = Target("d", float(model.table[0, subwords.pieces.index["d_"]]))
    assert SubwordRanking(subwords)(model, torch.zeros(1, 1, dtype=torch.int64), [target]).tolist() == [[1, 1]]


def test_progress_by_hand():
    """Three likelier words begin with `s`, one of these with `se`."""
    progress = Progress(Target("sea", -1.0))
    for word in ("the", "so", "see"):
        progress.count(shared_letters(word, "sea"))
    assert progress.letters == 1 and progress.found() == (SUGGESTED, 2)
    assert progress.needs("s") and progress.needs("") and progress.needs("sun") and not progress.needs("t")
    progress.count(shared_letters("sun", "sea"))
    assert progress.letters == 2 and progress.found() == (SUGGESTED, 1) and not progress.needs("sun")


def test_pieces_that_fit():
    pieces = SortedPieces({4: "s", 5: "se", 6: "sea", 7: "t", 8: "seas"})
    among = torch.ones(9, dtype=torch.bool).numpy()
    assert sorted(pieces.that_fit("sea", among)[1]) == ["s", "se", "sea", "seas"]
    assert sorted(pieces.that_fit("sea", among, whole=True)[1]) == ["sea", "seas"]
    among[[4, 8]] = False
    assert sorted(pieces.that_fit("sea", among)[1]) == ["se", "sea"] and len(pieces.that_fit("", among)[1]) == 3
