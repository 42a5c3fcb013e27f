"""The corpus, the loss, the schedule and checkpoints, all of them very small."""

import math

import numpy as np
import pytest
import torch
from small_text import prose

from homespun.core.errors import DataError, RunError
from homespun.pretraining.corpus import (
    END,
    END_ID,
    PADDING,
    CorpusSettings,
    build_corpus,
    load_corpus,
    pack,
    save_corpus,
    train_tokenizer,
)
from homespun.pretraining.network import NetworkSettings, mean_loss
from homespun.pretraining.sources import Text
from homespun.pretraining.training import (
    CHECKPOINT,
    PretrainSettings,
    initial_state,
    load_checkpoint,
    measure_documents,
    order_sequences,
    rate_at,
    schedule_batches,
    train,
)

SMALL = PretrainSettings(
    steps=6,
    batch=4,
    checkpoint_steps=3,
    corpus=CorpusSettings(vocabulary=300, sequence=16, held_out=0.2),
    network=NetworkSettings(layers=1, width=16, heads=2),
)
EVALUATED = ("The miller finds a red lamp before noon and then the council praises some bread near the mill.", "No.")


def text(name, paragraphs, given=False):
    return Text(name, "made up", "none", "here", 1.0, tuple(paragraphs), given=given)


@pytest.fixture(scope="module")
def corpus():
    return build_corpus([text("a", prose(60)), text("b", prose(20, seed=1))], EVALUATED, settings=SMALL.corpus, seed=0)


def test_documents_are_packed_whole_longest_first_into_the_fullest_row():
    documents = [[0, 1], [0, 2, 2, 2], [0, 3, 3], [0, 4]]
    assert pack(documents, 7).tolist() == [
        [0, 2, 2, 2, 0, 1, 0],  # four, then two of the two places left; the last place is for the end
        [0, 3, 3, 0, 4, 0, PADDING],
    ]


def test_every_sequence_begins_with_the_end_token(corpus):
    for rows in corpus.sequences.values():
        assert (rows[:, 0] == END_ID).all()
        assert rows.shape[1] == 17


def test_the_tokenizer_gives_every_text_back():
    tokenizer = train_tokenizer(prose(20), 300)
    assert tokenizer.token_to_id(END) == END_ID
    assert tokenizer.decode(tokenizer.encode("naïve “çedilla” 漢字").ids) == "naïve “çedilla” 漢字"


def test_held_out_text_is_not_trained_on_and_repetitions_are_dropped():
    same = prose(1)[0]
    corpus = build_corpus(
        [text("a", [same, *prose(50, seed=2)]), text("b", [same, *prose(50, seed=3)])],
        [],
        settings=SMALL.corpus,
        seed=0,
    )
    assert [one.repeated for one in corpus.facts] == [0, 1]
    assert all(len(rows) for rows in corpus.held_out.values())


def test_evaluated_words_are_dropped_from_packages_and_refused_in_given_files():
    copied = [*prose(50), f"He said: {EVALUATED[0]}"]
    dropped = build_corpus([text("a", copied)], EVALUATED, settings=SMALL.corpus, seed=0)
    assert (dropped.overlap_before.found, dropped.overlap.found, dropped.facts[0].dropped) == (1, 0, 1)
    settings = SMALL.corpus.model_copy(update={"held_out": 0.0})
    with pytest.raises(DataError, match=r"overlaps with 1 of 1 evaluated sentences.*Worst: mine\.txt"):
        build_corpus([text("mine.txt", copied, given=True)], EVALUATED, settings=settings, seed=0)
    allowed = settings.model_copy(update={"drop_overlap": True})
    assert build_corpus([text("mine.txt", copied, given=True)], EVALUATED, settings=allowed, seed=0).overlap.found == 0


def test_a_corpus_is_read_back_as_it_was_and_damage_is_noticed(corpus, tmp_path):
    save_corpus(corpus, tmp_path)
    again = load_corpus(tmp_path)
    assert again.fingerprint == corpus.fingerprint
    assert (again.facts, again.overlap) == (corpus.facts, corpus.overlap)
    other = build_corpus([text("a", prose(60, seed=9)), text("b", prose(20))], [], settings=SMALL.corpus, seed=0)
    save_corpus(other, tmp_path / "other")
    (tmp_path / "other" / "tokens.safetensors").replace(tmp_path / "tokens.safetensors")
    with pytest.raises(DataError, match="changed or damaged"):
        load_corpus(tmp_path)


def test_the_loss_and_its_gradient_are_the_cross_entropy_of_the_same_network(corpus):
    network = initial_state(corpus, SMALL, steps=1).network
    rows = torch.from_numpy(corpus.sequences["a"][:3]).long()
    rows[1, 9:] = PADDING
    mean_loss(network, rows).backward()
    ours = {name: one.grad.clone() for name, one in network.named_parameters()}
    network.zero_grad()
    logits = network(rows[:, :-1].clamp(min=0)).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), ignore_index=PADDING)
    expected.backward()
    assert mean_loss(network, rows).item() == pytest.approx(expected.item(), rel=1e-6)
    for name, one in network.named_parameters():
        torch.testing.assert_close(ours[name], one.grad, rtol=1e-4, atol=1e-6)


def test_a_style_vector_is_added_to_the_embedding_of_every_end_token_and_to_nothing_else(corpus):
    network = initial_state(corpus, SMALL, steps=1).network
    rows = torch.tensor([[END_ID, 5, END_ID, 6, 7], [END_ID, 8, 9, 10, PADDING]])
    style = torch.randn(2, 16, generator=torch.Generator().manual_seed(0))
    words = network.transformer.wte(rows[:, :-1]).detach()
    words[0, 0] += style[0]
    words[0, 2] += style[0]
    words[1, 0] += style[1]
    logits = network(inputs_embeds=words).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), ignore_index=PADDING)
    assert mean_loss(network, rows, style).item() == pytest.approx(expected.item(), rel=1e-6)
    assert mean_loss(network, rows, style).item() != pytest.approx(mean_loss(network, rows).item(), rel=1e-5)
    nothing = mean_loss(network, rows, torch.zeros(2, 16))
    assert nothing.item() == pytest.approx(mean_loss(network, rows).item(), rel=1e-6)


def test_a_sequence_has_the_style_vectors_of_its_source_and_its_stretch_or_none():
    settings = SMALL.model_copy(update={"corpus": SMALL.corpus.model_copy(update={"stretch": 400}), "voiceless": 0.25})
    made = build_corpus(
        [text("a", prose(60)), text("b", prose(20, seed=1))], EVALUATED, settings=settings.corpus, seed=0
    )
    assert (np.diff(made.stretches["a"]) >= 0).all()
    counts = [int(made.stretches[name][-1]) + 1 for name in ("a", "b")]
    assert counts[0] > counts[1] > 1
    read = schedule_batches(made, settings, steps=100)
    first_of_b = len(made.sequences["a"])
    for place, (of_source, of_stretch) in zip(read.order, read.style, strict=True):
        if of_source < 0:
            assert of_stretch < 0
        elif place < first_of_b:
            assert (of_source, of_stretch) == (0, 2 + made.stretches["a"][place])
        else:
            assert (of_source, of_stretch) == (1, 2 + counts[0] + made.stretches["b"][place - first_of_b])
    assert 0.15 < (read.style[:, 0] < 0).mean() < 0.35
    assert len(initial_state(made, settings, steps=1).style) == 2 + sum(counts)


def test_style_vectors_are_trained_only_where_they_are_used(corpus, tmp_path):
    silent = SMALL.model_copy(update={"voiceless": 1.0})
    state = initial_state(corpus, silent, steps=6)
    list(train(state, corpus, silent, folder=tmp_path))
    assert not state.style.any()
    state = initial_state(corpus, SMALL, steps=6)
    list(train(state, corpus, SMALL, folder=tmp_path))
    assert state.style.any(dim=1).all()


def test_the_learning_rate_rises_linearly_and_falls_along_a_cosine():
    settings = PretrainSettings(rate=1.0, warm_up=0.2, final_rate=0.1)
    assert [rate_at(step, 10, settings) for step in (0, 1)] == [0.5, 1.0]
    assert rate_at(2, 10, settings) == 1.0
    assert rate_at(6, 10, settings) == pytest.approx(0.55)
    assert rate_at(10, 10, settings) == pytest.approx(0.1)


def test_a_source_is_read_to_its_end_before_any_of_it_is_read_again():
    order = order_sequences({"a": 4, "b": 2}, {"a": 1.0, "b": 2.0}, count=400, seed=3)
    first, second = order[order < 4], order[order >= 4]
    assert 150 < len(first) < 250
    for start in range(0, len(first) - 4, 4):
        assert sorted(first[start : start + 4]) == [0, 1, 2, 3]
    assert sorted(second[:2]) == [4, 5]
    assert (order == order_sequences({"a": 4, "b": 2}, {"a": 1.0, "b": 2.0}, count=400, seed=3)).all()


def weights(state):
    found = {name: value.detach().clone() for name, value in state.network.named_parameters()}
    return {**found, "voices": state.style.detach().clone()}


def test_resuming_from_a_checkpoint_is_bit_identical(corpus, tmp_path):
    whole = initial_state(corpus, SMALL, steps=6)
    before = weights(whole)
    list(train(whole, corpus, SMALL, folder=tmp_path))
    part = initial_state(corpus, SMALL, steps=6)
    for progress in train(part, corpus, SMALL, folder=tmp_path):
        if progress.step == 5:  # two steps after the checkpoint
            break
    resumed = load_checkpoint(tmp_path / CHECKPOINT, corpus, SMALL)
    assert (resumed.step, resumed.steps) == (3, 6)
    list(train(resumed, corpus, SMALL, folder=tmp_path))
    assert (resumed.step, resumed.tokens) == (6, whole.tokens)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(resumed)[name])
        assert not torch.equal(value, before[name])


def test_a_damaged_checkpoint_is_named(corpus, tmp_path):
    (tmp_path / CHECKPOINT).write_bytes(b"nothing")
    with pytest.raises(RunError, match=r"checkpoint\.safetensors: cannot be read"):
        load_checkpoint(tmp_path / CHECKPOINT, corpus, SMALL)


def test_perplexity_is_the_exponential_of_the_mean_loss(corpus):
    state = initial_state(corpus, SMALL, steps=1)
    with torch.no_grad():
        state.network.transformer.wte.weight.zero_()  # then all pieces are equally likely
    measured = measure_documents(state.network, np.array([[0, 5, 6, PADDING], [0, 7, PADDING, PADDING]]))
    assert measured.tokens == 3
    assert measured.perplexity == pytest.approx(300)
    assert measured.loss == pytest.approx(3 * math.log(300))
