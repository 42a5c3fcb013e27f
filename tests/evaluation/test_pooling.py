"""Folds and seeds combined into one evaluation, computed by hand."""

import numpy as np
import pytest

from homespun.evaluation.pooling import average_evaluations, merge_evaluations, sum_by_user


def labels(values, *, value, examples, loss=1.0):
    return {
        "metric": "accuracy", "value": value, "loss": loss, "users": len(values), "examples": examples,
        "user_mean": float(np.mean(values)) if values else None, "user_worst_tenth": min(values, default=None),
        "user_values": values,
    }  # fmt: skip


def text(losses, tokens):
    return {"metric": "perplexity", "users": len(losses), "examples": 1, "user_loss": losses, "user_tokens": tokens}


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
    found = sum_by_user(seeds, [[5, 7], [7, 9]])
    assert (found.user_loss, found.user_tokens) == ((1.0, 6.0, 8.0), (10, 50, 40))
    unknown = sum_by_user(seeds, [None, None])
    assert (unknown.user_loss, unknown.user_tokens) == ((1.0, 2.0, 4.0, 8.0), (10, 20, 30, 40))


def test_subwords_of_folds_add_up():
    one, other = ({**text([2.0], [2]), "subwords": count} for count in (3, 5))
    merged = merge_evaluations([one, other])
    assert merged["subwords"] == 8 and merged["subword_perplexity"] == pytest.approx(np.exp(4 / 8))
    assert "subwords" not in merge_evaluations([text([2.0], [2]), text([2.0], [2])])
