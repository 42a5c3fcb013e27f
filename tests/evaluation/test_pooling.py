"""Folds and seeds combined into one evaluation, computed by hand."""

import numpy as np
import pytest

from homespun.evaluation.next_words import COUNTS, NextWordEvaluation
from homespun.evaluation.pooling import average_evaluations, merge_evaluations, sum_by_user, sum_losses_by_user


def labels(values, *, value, examples, loss=1.0):
    return {
        "metric": "accuracy", "value": value, "loss": loss, "users": len(values), "examples": examples,
        "user_mean": float(np.mean(values)) if values else None, "user_worst_tenth": min(values, default=None),
        "user_values": values,
    }  # fmt: skip


def text(losses, tokens):
    return {"metric": "perplexity", "users": len(losses), "examples": 1, "user_loss": losses, "user_tokens": tokens}


def next_words(*users, loss):
    """Counts of each user in the order of COUNTS."""
    return NextWordEvaluation(dict(zip(COUNTS, zip(*users, strict=True), strict=True)), loss).to_dict()


def test_participants_are_averaged():
    found = average_evaluations(
        [labels([0.0, 1.0], value=0.5, examples=2), labels([1.0], value=1.0, examples=8, loss=3.0)]
    )
    assert found == {"metric": "accuracy", "value": 0.75, "user_mean": 0.75, "user_worst_tenth": 0.5, "loss": 2.0}


def test_newcomers_count_together():
    found = merge_evaluations(
        [labels([0.0, 1.0], value=0.5, examples=2), labels([1.0], value=1.0, examples=8, loss=2.0)]
    )
    assert (found["users"], found["examples"], found["user_values"]) == (3, 10, [0.0, 1.0, 1.0])
    assert (found["value"], found["loss"]) == (pytest.approx(0.9), pytest.approx(1.8))
    assert (found["user_mean"], found["user_worst_tenth"]) == (pytest.approx(2 / 3), 0.0)


def test_a_fold_without_tested_users_changes_nothing():
    empty = labels([], value=None, examples=0, loss=None)
    found = merge_evaluations([labels([1.0], value=1.0, examples=4), empty])
    assert (found["value"], found["loss"], found["users"]) == (1.0, 1.0, 1)
    assert np.isnan(merge_evaluations([empty, empty])["value"])


def test_perplexity_is_over_all_tokens_of_all_folds():
    found = merge_evaluations([text([10.0], [10]), text([60.0, 2.0], [20, 1])])
    assert found["value"] == pytest.approx(np.exp(72 / 31))
    assert found["user_values"] == pytest.approx([np.e, np.exp(3), np.exp(2)])
    assert found["user_worst_tenth"] == pytest.approx(np.exp(3))
    assert np.isnan(merge_evaluations([text([None], [10]), text([1.0], [1])])["value"])  # a run that diverged


def test_one_user_in_several_seeds_is_one_user():
    seeds = [text([1.0, 2.0], [10, 20]), text([4.0, 8.0], [30, 40])]
    found = sum_losses_by_user(seeds, [[5, 7], [7, 9]])
    assert (found.user_loss, found.user_tokens) == ((1.0, 6.0, 8.0), (10, 50, 40))
    unknown = sum_losses_by_user(seeds, [None, None])
    assert (unknown.user_loss, unknown.user_tokens) == ((1.0, 2.0, 4.0, 8.0), (10, 20, 30, 40))


def test_subwords_of_folds_add_up():
    one, other = ({**text([2.0], [2]), "subwords": count} for count in (3, 5))
    merged = merge_evaluations([one, other])
    assert merged["subwords"] == 8 and merged["subword_perplexity"] == pytest.approx(np.exp(4 / 8))
    assert "subwords" not in merge_evaluations([text([2.0], [2]), text([2.0], [2])])


def test_next_words_are_counted_over_all_folds():
    """10 + 30 + 20 words with 5 + 6 + 10 hits; of 4 + 2 unknown words 1 is suggested, and the lexicon has 3."""
    one = next_words((10, 5, 4, 1, 2, 50, 20), (30, 6, 0, 0, 0, 150, 30), loss=80.0)
    other = next_words((0,) * 7, (20, 10, 2, 0, 1, 100, 25), loss=100.0)
    found = merge_evaluations([one, other])
    assert (found["metric"], found["users"], found["examples"]) == ("EMR3", 3, 60)
    assert (found["value"], found["loss"]) == (pytest.approx(21 / 60), pytest.approx(180 / 60))
    assert found["kemr3"] == pytest.approx(20 / 54) and found["oov_accuracy"] == pytest.approx(1 / 6)
    assert found["oov_rate"] == pytest.approx(6 / 60) and found["oov_rate_left"] == pytest.approx(3 / 60)
    assert found["keystrokes_saved"] == pytest.approx(75 / 300)
    assert found["user_values"] == [0.5, 0.2, 0.5] and found["user_mean"] == pytest.approx(0.4)
    assert found["user_counts"]["words"] == [10, 30, 0, 20]
    empty = next_words((0,) * 7, loss=0.0)
    assert merge_evaluations([one, {**empty, "value": None, "loss": None}])["loss"] == pytest.approx(2.0)
    assert np.isnan(merge_evaluations([one, {**other, "loss": None}])["loss"])  # a run that diverged


def test_counts_of_a_user_in_several_seeds_add_up():
    seeds = [{"words": [10, 20], "hits": [1, 2]}, {"words": [30, 40], "hits": [3, 4]}]
    assert sum_by_user(seeds, [[5, 7], [7, 2]]) == {"words": [40, 10, 50], "hits": [4, 1, 5]}
    assert sum_by_user(seeds, [None, None]) == {"words": [10, 20, 30, 40], "hits": [1, 2, 3, 4]}
    with pytest.raises(ValueError, match="zip"):
        sum_by_user(seeds, [[5, 7], [7]])
