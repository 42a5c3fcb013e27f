"""The workload `homespun bench pretrain`: its pairs, its steps, and that both sides compute the same."""

import numpy as np
import pytest

from homespun.cli.workloads import load_workload
from homespun.core.errors import SettingsError
from homespun.models.vocabulary import PADDING, SPECIAL


@pytest.fixture(scope="module")
def pretrain():
    return load_workload("pretrain")


@pytest.fixture(scope="module")
def corpus(pretrain):
    return pretrain.generate_corpus(2000)


def test_generated_pairs_have_the_lengths_of_dialogues(corpus):
    pairs = corpus.train
    assert pairs.question_length.min() == 2 and pairs.question_length.max() == 20
    assert pairs.question_length.mean() == pytest.approx(8.4, abs=0.3)
    assert (pairs.length - 1 == (pairs.reply != PADDING).sum(1)).all()
    assert pairs.reply[pairs.reply != PADDING].min() == SPECIAL
    assert len(corpus.vocabulary) == 12_000


def test_both_sides_have_the_same_losses(pretrain, corpus):
    assert pretrain.max_loss_difference(corpus, batch=4) < 1e-5


def test_dropout_changes_the_loss(pretrain, corpus):
    some = [np.arange(4)]
    assert pretrain.Ours(corpus, batch=4, dropout=0.2).run(some) != pretrain.Ours(corpus, batch=4, dropout=0).run(some)


def test_a_round_has_512_pairs_or_one_batch(pretrain, corpus):
    assert np.shape(pretrain.plan(corpus, batch=128, rounds=2)) == (2, 4, 128)
    assert np.shape(pretrain.plan(corpus, batch=1024, rounds=3)) == (3, 1, 1024)  # more pairs than there are


def test_nominal_operations_by_hand(pretrain, corpus):
    """A word takes 4 layers x 400 x 200 products, a word to predict 100 x 12,000 more; two operations each, times 3."""
    some = corpus.train.take(np.array([0]))
    read, written = int(some.question_length[0]), int(some.length[0])
    assert pretrain.flop(some) == 6 * (read * 320_000 + written * 1_520_000)


def test_the_best_variant_of_each_side_counts(pretrain):
    theirs = {("packed", 1): [4.0, 8.0, 4.0], ("padded", 1): [3.0, 3.0, 9.0]}
    found = pretrain.Times({1: [1.0, 2.0, 1.0], 2: [5.0, 5.0, 0.5]}, theirs, [100.0, 50.0, 60.0])
    figures = found.figures(pairs=60, flop=25e9)
    assert (figures["reference_encoder"], figures["reference_pairs_per_s"]) == ("padded", 20)
    assert (figures["ours_threads"], figures["ours_pairs_per_s"], figures["ours_2_pairs_per_s"]) == (1, 60, 12)
    assert (figures["ratio"], figures["gemm_share"]) == (3, 0.25)


def test_a_batch_of_nothing_is_an_error(pretrain):
    with pytest.raises(SettingsError, match="batch is 0"):
        pretrain.measure(batch=0)
