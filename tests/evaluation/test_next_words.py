"""EMR3 and its relatives, by hand."""

import pytest
import torch

from homespun.evaluation.next_words import NextWordScoring, emr3_and_loss

UNKNOWN = 3


def test_counts_by_hand():
    """Six words: a hit, a miss (rank 3), an unknown word that is no own word, an own word that is suggested, one that
    is not, and one beyond the end of its text."""
    data = {
        "words": torch.tensor([[7, 8, UNKNOWN], [UNKNOWN, UNKNOWN, 9]]),
        "length": torch.tensor([3, 2]),
        "letters": torch.tensor([[3, 1, 4], [5, 5, 9]]),
    }
    output = torch.zeros(2, 3, 3)
    output[..., 2] = torch.tensor([[3.0, 0.0, 0.0], [4.0, 2.0, 9.0]])
    output[..., 0] = 0.5
    output[..., 1] = torch.tensor([[2.0, 3.0, -1.0], [0.0, 5.0, 0.0]])
    scoring = NextWordScoring()
    counts = scoring.score(data, output)
    assert {name: one.item() for name, one in counts.items()} == {
        "words": 5, "hits": 2, "oov": 3, "oov_hits": 1, "covered": 2, "loss": 2.5,
        "keys": 18 + 5, "saved_keys": 9,
    }  # fmt: skip
    found = scoring.summarize([counts, counts])
    assert found.headline == ("EMR3", pytest.approx(2 / 5)) and found.users == 2 and found.examples == 10
    assert found.kemr3 == pytest.approx(1 / 2) and found.oov_accuracy == pytest.approx(1 / 3)
    assert found.keystrokes_saved == pytest.approx(9 / 23)
    assert found.oov_rate == pytest.approx(3 / 5) and found.oov_rate_left == pytest.approx(1 / 5)


def test_without_a_lexicon_no_unknown_word_is_a_hit():
    data = {"words": torch.tensor([[UNKNOWN, 7]]), "length": torch.tensor([2]), "letters": torch.ones(1, 2)}
    output = torch.tensor([[[0.5, -1.0, 0.0], [0.5, 0.0, 1.0]]])
    found = NextWordScoring().summarize([NextWordScoring().score(data, output)])
    assert found.emr3 == 0.5 and found.oov_rate_left == found.oov_rate == 0.5


@pytest.mark.parametrize(("loss", "scored"), [(2.5, -2.5), (99.0, -99.0), (1e9, -torch.inf), (torch.nan, -torch.inf)])
def test_a_model_that_diverged_has_no_finite_score(loss, scored):
    """It hits both words."""
    data = {"words": torch.tensor([[7, 8]]), "length": torch.tensor([2])}
    output = torch.tensor([[[loss, 0.0, 0.0], [loss, 1.0, 0.0]]])
    assert emr3_and_loss(data, output) == (1.0, scored)


def test_words_are_pooled():
    """A user with one hit of one word, and one with no hit of three: one of four, not the mean of 1 and 0."""
    scoring, hit, miss = NextWordScoring(), torch.zeros(1, 3, 3), torch.full((1, 3, 3), 9.0)
    letters = torch.ones(1, 3)
    one = scoring.score({"words": torch.tensor([[7, 0, 0]]), "length": torch.tensor([1]), "letters": letters}, hit)
    other = scoring.score({"words": torch.tensor([[7, 8, 9]]), "length": torch.tensor([3]), "letters": letters}, miss)
    found = scoring.summarize([one, other])
    assert found.emr3 == 0.25 and found.to_dict()["user_mean"] == 0.5


def test_a_user_without_words_keeps_a_place_and_counts_nowhere():
    """Whose counts are where follows from the order of the users."""
    scoring, letters = NextWordScoring(), torch.ones(1, 1)
    hit = scoring.score(
        {"words": torch.tensor([[7]]), "length": torch.tensor([1]), "letters": letters}, torch.zeros(1, 1, 3)
    )
    none = scoring.score(
        {"words": torch.tensor([[0]]), "length": torch.tensor([1]), "letters": letters}, torch.zeros(1, 1, 3)
    )
    found = scoring.summarize([none, hit])
    assert found.user_counts["words"] == (0, 1) and found.user_counts["hits"] == (0, 1)
    assert (found.users, found.examples, found.emr3) == (1, 1, 1.0)
    assert found.to_dict()["user_values"] == [1.0] and found.to_dict()["user_worst_tenth"] == 1.0
    assert scoring.summarize([none]).to_dict()["users"] == 0
