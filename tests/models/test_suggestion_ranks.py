"""Ranks of words and the letters that suggestions save, by hand and against a slow oracle."""

import pytest
import torch

from homespun.models.suggestion_ranks import NO_RANK, NOTHING, SUGGESTED, Ranking

WORDS = ("the", "sea", "seal", "season", "seat", "is", "zürich")


def letters_saved(scores, word):
    """Type the word letter by letter and look at the three likeliest words each time."""
    for typed in range(len(word) + 1):
        fitting = [number for number, one in enumerate(WORDS) if one.startswith(word[:typed])]
        best = sorted(fitting, key=lambda number: (-scores[number], number))[:SUGGESTED]
        if WORDS.index(word) in best:
            return len(word) - typed
    return 0


def test_by_hand():
    """`sea` is the fifth of all, and the third of those with an `s`; `seat` has to be typed whole."""
    scores = torch.tensor([[0, 9.0, 5, 6, 8, 1, 9, 2]])
    ranking = Ranking(WORDS, first=1)
    assert ranking(scores, torch.tensor([1])).tolist() == [[0, 3]]
    assert ranking(scores, torch.tensor([2])).tolist() == [[4, 2]]
    assert ranking(scores, torch.tensor([5])).tolist() == [[6, 0]]
    assert ranking(scores, torch.tensor([0])).tolist() == [[NO_RANK, 0]]
    assert ranking(scores, torch.tensor([NOTHING])).tolist() == [[0, 0]]
    assert ranking(scores[:0], torch.tensor([], dtype=torch.int64)).shape == (0, 2)


@pytest.mark.parametrize("ties", [False, True])
def test_against_typing(ties):
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(40, 1 + len(WORDS), generator=generator)
    scores = scores.round() if ties else scores
    targets = torch.randint(1, 1 + len(WORDS), (40,), generator=generator)
    found = Ranking(WORDS, first=1)(scores, targets)
    for row, target, (rank, saved) in zip(scores, targets.tolist(), found.tolist(), strict=True):
        order = sorted(range(len(WORDS)), key=lambda number: (-float(row[1 + number]), number))
        assert order.index(target - 1) == rank
        assert letters_saved(row[1:].tolist(), WORDS[target - 1]) == saved
