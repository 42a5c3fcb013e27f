"""Stage 1 of FedNLG: pairs as numbers, what is held out, which epoch is kept."""

import math

import numpy as np
import pytest
import torch
from small_dialogue import conversations

from homespun.core.errors import DataError, SettingsError
from homespun.core.settings import parse
from homespun.data import load_federation
from homespun.data.dialogue import replies
from homespun.models.reply_model import Sizes
from homespun.models.vocabulary import BEGIN, END, PADDING, UNKNOWN, Vocabulary
from homespun.pretraining import central, reply_training
from homespun.pretraining.central import take_step
from homespun.pretraining.reply_pairs import encode_pairs, load_corpus, make_corpus, save_corpus
from homespun.pretraining.reply_training import ReplyObjective, ReplyPretrainSettings, trim

SMALL = Sizes(word_dim=5, cells=4, layers=1, length=6)
SETTINGS = ReplyPretrainSettings(words=20, sizes=SMALL, batch=16, epochs=2, dev_share=0.2, dev_replies=5)


def corpus_of(rows, *, direction="replies", words=20, dev_share=0.2, seed=0, sizes=SMALL):
    federation = replies(load_federation(rows))
    return make_corpus(federation, words=words, sizes=sizes, direction=direction, dev_share=dev_share, seed=seed)


def test_pairs_as_numbers():
    words = Vocabulary(("hello", "you", "?"))
    hello, you, mark = 4, 5, 6
    pairs = encode_pairs(
        iter(
            [
                ("Hello you?", "Hello."),  # the full stop is unknown
                ("", "you you you"),  # no word at all; a reply of exactly `length` words has an end
                ("hello you ? hello", "hello you ? hello"),  # both are cut; a cut reply has no end
                ("*", "***"),
            ]
        ),
        words,
        length=3,
    )
    assert pairs.question.tolist() == [
        [hello, you, mark],
        [UNKNOWN, PADDING, PADDING],
        [hello, you, mark],
        [UNKNOWN, PADDING, PADDING],
    ]
    assert pairs.question_length.tolist() == [3, 1, 3, 1]
    assert pairs.reply.tolist() == [
        [hello, UNKNOWN, PADDING],
        [you, you, you],
        [hello, you, mark],
        [UNKNOWN, PADDING, PADDING],
    ]
    assert pairs.length.tolist() == [3, 4, 3, 2]
    assert encode_pairs(iter([]), words, length=3).question.shape == (0, 3)


def test_a_batch_is_cut_to_its_longest_texts():
    words = Vocabulary(("a", "b"))
    pairs = encode_pairs(iter([("a", "a b a"), ("a b", "b")]), words, length=5)
    batch = trim(pairs.batch(np.array([1])))
    assert batch["question"].tolist() == [[4, 5]] and batch["reply"].tolist() == [[5]]
    assert batch["length"].tolist() == [2]
    whole = trim(pairs.batch(np.array([0, 1])))
    assert whole["reply"].tolist() == [[4, 5, 4], [5, PADDING, PADDING]]


def test_both_directions_share_vocabulary_and_held_out_pairs():
    rows = conversations(10)
    forth, back = corpus_of(rows), corpus_of(rows, direction="prompts")
    assert forth.vocabulary == back.vocabulary and len(forth.vocabulary) <= 20
    assert np.array_equal(forth.train.question, back.train.reply)
    assert np.array_equal(forth.dev.reply, back.dev.question)


def test_vocabulary_is_that_of_the_training_part():
    """Each conversation has a word of its own, so that the vocabulary shows which ones are held out."""
    rows = [{"user": u, "text": f"w{scene}", "scene": scene} for scene in range(10) for u in ("a", "b", "a")]
    found = corpus_of(rows, words=100, dev_share=0.3)
    assert len(found.vocabulary.known) == 7 and found.conversations == 10
    assert len(found.train) == 14 and len(found.dev) == 6
    assert (found.dev.reply[:, 0] == UNKNOWN).all()  # no held-out conversation is in the training part
    assert (found.train.reply[:, 0] != UNKNOWN).all() and found.unknown == 0.0
    other = corpus_of(rows, words=100, dev_share=0.3, seed=1)
    assert other.vocabulary != found.vocabulary
    assert corpus_of(rows, words=100, dev_share=0.3).vocabulary == found.vocabulary


def test_share_of_unknown_words():
    rows = [{"user": u, "text": "a a a b", "scene": scene} for scene in range(3) for u in ("x", "y")]
    assert corpus_of(rows, words=5, dev_share=0.3).unknown == 0.25  # one word is known


@pytest.mark.parametrize(("dev_share", "held_out"), [(0.01, 1), (0.5, 2), (0.99, 3)])
def test_at_least_one_conversation_is_held_out_and_one_is_left(dev_share, held_out):
    found = corpus_of(conversations(4), dev_share=dev_share)
    assert len(found.dev) == 3 * held_out and len(found.train) == 3 * (4 - held_out)


def test_one_conversation_is_too_few():
    with pytest.raises(DataError, match="one conversation only"):
        corpus_of(conversations(1))


def test_a_vocabulary_needs_a_word():
    with pytest.raises(SettingsError, match="words"):
        parse(ReplyPretrainSettings, {"words": 4}, where="pretrain seq2seq")


def test_a_corpus_on_disk_is_the_same(tmp_path):
    made = corpus_of(conversations(6))
    save_corpus(made, tmp_path / "corpus")
    found = load_corpus(tmp_path / "corpus")
    assert (found.vocabulary, found.unknown, found.conversations) == (made.vocabulary, made.unknown, made.conversations)
    for part in ("train", "dev"):
        for name in ("question", "question_length", "reply", "length"):
            left, right = getattr(getattr(found, part), name), getattr(getattr(made, part), name)
            assert np.array_equal(left, right) and left.dtype == right.dtype


def test_the_best_epoch_is_the_first_of_equal_ones():
    history = [scores_of(1, 30.0, 0.2), scores_of(2, 20.0, 0.3), scores_of(3, 10.0, 0.3), scores_of(4, 10.0, 0)]
    for choose_by, epoch in (("bleu", 2), ("perplexity", 3)):
        objective = ReplyObjective(corpus_of(conversations(6)), replace_settings(choose_by=choose_by))
        assert objective.best(history)["epoch"] == epoch
    assert objective.best([scores_of(1, math.nan, 0.1), scores_of(2, 5.0, 0.1)])["epoch"] == 2


def scores_of(epoch, perplexity, bleu):
    return {"epoch": epoch, "perplexity": perplexity, "bleu": bleu}


def replace_settings(**changes):
    return SETTINGS.model_copy(update=changes)


@pytest.mark.parametrize(("choose_by", "epoch"), [("bleu", 2), ("perplexity", 3)])
def test_the_weights_of_the_best_epoch_are_kept(tmp_path, monkeypatch, choose_by, epoch):
    scores = iter([scores_of(1, 30.0, 0.1), scores_of(2, 20.0, 0.3), scores_of(3, 10.0, 0.2)])
    monkeypatch.setattr(reply_training, "evaluate_network", lambda *_, **__: next(scores))
    objective = ReplyObjective(corpus_of(conversations(6)), replace_settings(epochs=3, choose_by=choose_by))
    state, after = central.initial_state(objective), {}
    for progress in central.train(state, objective, folder=tmp_path):
        if progress.epoch is not None:
            after[progress.epoch["epoch"]] = {n: v.detach().clone() for n, v in state.network.named_parameters()}
    assert all(torch.equal(state.best[name], value) for name, value in after[epoch].items())
    assert any(not torch.equal(state.best[name], value) for name, value in after[1].items())


def test_a_checkpoint_continues_bit_identical(tmp_path):
    objective = ReplyObjective(corpus_of(conversations(12)), SETTINGS)
    whole = central.initial_state(objective)
    assert central.steps_per_epoch(objective) == 2  # 30 pairs, 16 in a step
    for _ in central.train(whole, objective, folder=tmp_path):
        pass
    part, steps = central.initial_state(objective), iter(range(3))
    for _ in zip(steps, central.train(part, objective, folder=tmp_path), strict=False):
        pass
    central.save_checkpoint(part, tmp_path / "part")
    again = central.load_checkpoint(tmp_path / "part", objective)
    assert again.step == 3 and again.history == part.history and len(again.history) == 1
    for _ in central.train(again, objective, folder=tmp_path):
        pass
    assert again.step == whole.step == 4 and again.history == whole.history
    for (name, left), right in zip(again.network.named_parameters(), whole.network.parameters(), strict=True):
        assert torch.equal(left, right), name
    assert all(torch.equal(again.best[name], value) for name, value in whole.best.items())


def test_an_epoch_has_every_pair_once_in_another_order(tmp_path, monkeypatch):
    objective, taken = ReplyObjective(corpus_of(conversations(12)), SETTINGS), []

    def taking(state, objective, rows, **_):
        taken.append(rows.tolist())
        return 0.0

    monkeypatch.setattr(central, "take_step", taking)
    for _ in central.train(central.initial_state(objective), objective, folder=tmp_path):
        pass
    assert [len(rows) for rows in taken] == [16, 14, 16, 14]
    first, second = taken[0] + taken[1], taken[2] + taken[3]
    assert sorted(first) == sorted(second) == list(range(30)) and first != second


def gradients(block, monkeypatch, *, steps=1, clip_norm=5.0):
    monkeypatch.setattr(reply_training, "ROWS", block)
    objective = ReplyObjective(corpus_of(conversations(12)), replace_settings(clip_norm=clip_norm, lr=1e-12))
    state = central.initial_state(objective)
    for _ in range(steps):
        state.step = 0  # the same dropout
        loss = take_step(state, objective, np.arange(10), progress=0.0)
    return loss, {name: value.grad.clone() for name, value in state.network.named_parameters()}


def test_a_gradient_depends_neither_on_blocks_nor_on_earlier_steps(monkeypatch):
    """Pairs are computed in blocks, whose losses add up to the mean over the words of the step. The two biases of an
    LSTM have equal gradients, in memory of their own."""
    loss, whole = gradients(10, monkeypatch)
    for block, steps in ((3, 1), (10, 2)):
        again, found = gradients(block, monkeypatch, steps=steps)
        assert again == pytest.approx(loss, abs=1e-6)
        for name, value in found.items():
            torch.testing.assert_close(value, whole[name], rtol=0, atol=1e-7)


def test_a_gradient_is_clipped_to_the_norm(monkeypatch):
    _, found = gradients(10, monkeypatch, clip_norm=0.01)
    assert torch.stack([one.norm() for one in found.values()]).norm() == pytest.approx(0.01, rel=1e-3)


def test_the_learning_rate_falls_linearly():
    objective = ReplyObjective(corpus_of(conversations(6)), replace_settings(lr=0.1, final_lr=0.5))
    state = central.initial_state(objective)
    for progress, lr in ((0.0, 0.1), (0.5, 0.075), (1.0, 0.05)):
        take_step(state, objective, np.arange(3), progress=progress)
        assert state.optimizer.param_groups[0]["lr"] == pytest.approx(lr)


def test_perplexity_and_bleu_by_hand():
    """A model that gives all words the same probability, but a little more to one: greedy replies repeat that word."""
    corpus = corpus_of([{"user": u, "text": "a b", "scene": s} for s in range(5) for u in ("x", "y")], words=6)
    state = central.initial_state(ReplyObjective(corpus, SETTINGS))
    with torch.no_grad():
        state.network.output.weight.zero_()
        state.network.output.bias.zero_()
        state.network.output.bias[END] = math.log(2)
    scores = reply_training.evaluate_network(state.network, corpus, epoch=1, replies=5)
    # 6 numbers with weights 1, the end with 2: two words of 1/7 each and an end of 2/7
    assert scores["perplexity"] == pytest.approx((7 * 7 * 3.5) ** (1 / 3))
    # The reply is one word, `a`, and then the end: 1 of 1 words is right, brevity exp(1 - 2 / 1)
    assert scores["bleu"] == pytest.approx(math.exp(-1), rel=0.01)


def test_a_diverged_model_has_infinite_perplexity_and_is_never_the_best():
    corpus = corpus_of(conversations(6))
    state = central.initial_state(ReplyObjective(corpus, SETTINGS))
    with torch.no_grad():
        state.network.output.bias[BEGIN] = 1e6
    assert reply_training.evaluate_network(state.network, corpus, epoch=1, replies=2)["perplexity"] == math.inf
