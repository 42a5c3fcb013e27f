import numpy as np
import pytest

from homespun.data.federation import Examples
from homespun.data.splits import Split
from homespun.evaluation import metrics
from homespun.evaluation.classification import LabelScoring, controls, summarize


def test_metrics_by_hand():
    labels = np.array([0, 1, 1, 0])
    logits = np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 0.0]])  # the tie goes to label 0
    assert metrics.accuracy(labels, logits) == 0.75
    assert metrics.cross_entropy(labels, logits)[3] == pytest.approx(np.log(2))
    assert metrics.cross_entropy(labels[:1], logits[:1])[0] == pytest.approx(np.log(1 + np.exp(-2)))
    # scores of the positives: 1 and -3; of the negatives: -2 and 0. Pairs won: 1 > -2, 1 > 0.
    assert summarize([labels[:2], labels[2:]], [logits[:2], logits[2:]], classes=2).auc == 0.5
    assert np.isnan(metrics.auc(np.array([1, 1]), np.array([0.5, 1.0])))


def test_a_huge_logit_does_not_overflow():
    assert metrics.cross_entropy(np.array([1]), np.array([[1e5, 0.0]]))[0] == 1e5


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0.5], 0.5), ([0.9, 0.1, 0.5], 0.1), (np.arange(20) / 20, 0.025), (np.arange(21) / 20, 0.05), ([], None)],
)
def test_worst_tenth(values, expected):
    found = metrics.worst_tenth(values)
    assert np.isnan(found) if expected is None else found == pytest.approx(expected)


def test_the_worst_tenth_of_losses_are_the_largest():
    assert metrics.worst_tenth([1.0, 9.0, 2.0], higher_is_better=False) == 9.0


def test_mean_and_deviation():
    assert metrics.mean_and_deviation([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))
    assert np.isnan(metrics.mean_and_deviation([1.0])[1])


def test_examples_count_alike_in_accuracy_and_users_in_the_mean_over_users():
    right, wrong = np.array([[1.0, 0.0, 0.0]]), np.array([[0.0, 1.0, 0.0]])
    labels = [np.zeros(3, dtype=int), np.zeros(1, dtype=int), np.zeros(0, dtype=int)]
    logits = [np.repeat(right, 3, axis=0), wrong, np.zeros((0, 3))]
    found = summarize(labels, logits, classes=3)
    assert (found.users, found.examples) == (2, 4)
    assert (found.accuracy, found.user_accuracy_mean, found.user_accuracy_worst_tenth) == (0.75, 0.5, 0.0)
    assert found.user_accuracy == (1.0, 0.0)
    assert found.auc is None and found.headline == ("accuracy", 0.75)


def test_no_user_has_examples():
    assert np.isnan(summarize([np.zeros(0, dtype=int)], [np.zeros((0, 3))], classes=3).accuracy)


def examples(labels):
    return Examples([""] * len(labels), labels=np.array(labels, dtype=int))


def test_controls_by_hand():
    """Ann labels mostly 1, Bob mostly 2; together 1 is the most frequent in training."""
    splits = [
        Split(examples([1, 1, 1, 0]), examples([]), examples([1, 1])),
        Split(examples([2, 2, 0]), examples([]), examples([2, 1])),
    ]
    found = controls(splits, [split.test for split in splits], LabelScoring(3))
    assert found["majority"].accuracy == 0.75  # 1, 1 | 1
    assert found["own_majority"].accuracy == 0.75  # 1, 1 | 2
    # scores are smoothed frequencies: Ann's of label 1 is (3 + 1) / (4 + 3)
    assert found["own_majority"].user_loss_mean == pytest.approx(
        (-np.log(4 / 7) + (-np.log(3 / 6) - np.log(1 / 6)) / 2) / 2
    )
