"""Stage 1 of OOV Expansion: texts as pieces of word numbers, what is held out, which epoch is kept, its command."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from homespun.cli import app
from homespun.core.errors import DataError, InputError
from homespun.data import load_federation
from homespun.data.source import DataSettings
from homespun.models import next_word_model
from homespun.models.next_subword import NextSubword
from homespun.models.next_word_model import NextWordSizes, load_next_word_model, save_next_word_model
from homespun.models.subwords import Subwords
from homespun.models.vocabulary import PADDING, SPECIAL, UNKNOWN, Vocabulary
from homespun.pretraining import central, word_training
from homespun.pretraining.word_run import NextWordRequest, finish_word_run, open_word_run
from homespun.pretraining.word_texts import cut_by_size, cut_texts, load_corpus, make_corpus, save_corpus
from homespun.pretraining.word_training import NextWordObjective, NextWordPretrainSettings

SMALL = NextWordSizes(byte_dim=4, cells=6, layers=1)
SETTINGS = NextWordPretrainSettings(words=6, sizes=SMALL, batch=8, epochs=2, lr=0.02, length=5, dev_share=0.2)
ROWS = [
    {"user": f"article {number}", "text": f"the sea is blue and the sky is {'blue' if number % 2 else 'grey'} today"}
    for number in range(20)
]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_texts_are_cut_into_pieces():
    words = Vocabulary(("the", "sea"))
    pieces = cut_texts(["The sea, the sky", "", "sea the sea"], words, length=3)
    assert pieces.words.tolist() == [[4, 5, UNKNOWN], [4, UNKNOWN, PADDING], [5, 4, 5]]
    batch = pieces.batch(np.array([1]))
    assert batch["words"].tolist() == [[4, UNKNOWN]] and batch["length"].tolist() == [2]


def test_texts_are_cut_into_pieces_of_whole_words():
    """Of at most three words and, so that a long word fits, 30 sub-words."""
    subwords = Subwords(("a", "a_"), ())
    long = "a" * 28
    pieces = cut_texts(["a a a a", f"a {long} aa", "b a"], Vocabulary(("a",)), length=3, subwords=subwords)
    assert pieces.words.tolist() == [[4, 4, 4], [4, 0, 0], [4, 3, 0], [3, 0, 0], [3, 4, 0]]
    assert (pieces.subwords != PADDING).sum(axis=1).tolist() == [3, 1, 29, 2, 2]
    assert pieces.subwords[4, :2].tolist() == [UNKNOWN, 5]
    batch = pieces.batch(np.array([0, 3]))
    assert batch["pieces"].tolist() == [[5, 5, 5], [4, 5, 0]] and batch["piece_count"].tolist() == [3, 2]
    assert batch["words"].tolist() == [[4, 4, 4], [3, 0, 0]] and batch["length"].tolist() == [3, 1]
    assert cut_by_size("abcd", [2, 2, 5, 1], most=4) == ["ab", "c", "d"] and cut_by_size("", [], most=4) == []


def test_whole_users_are_held_out(tmp_path):
    federation = load_federation([*ROWS, {"user": "article 0", "text": "the end"}])
    corpus = make_corpus(federation, Vocabulary(("the", "sea", "end")), length=20, dev_share=0.2, seed=0)
    assert (len(corpus.train) + len(corpus.dev), len(corpus.dev)) in ((21, 4), (21, 5))
    save_corpus(corpus, tmp_path / "corpus")
    again = load_corpus(tmp_path / "corpus")
    assert again.vocabulary == corpus.vocabulary and np.array_equal(again.train.words, corpus.train.words)
    with pytest.raises(DataError, match="--user-column"):
        make_corpus(load_federation([ROWS[0]]), corpus.vocabulary, length=20, dev_share=0.2, seed=0)


def test_the_loss_is_the_mean_over_words(tmp_path):
    corpus = make_corpus(load_federation(ROWS), Vocabulary(("the", "sea")), length=5, dev_share=0.2, seed=0)
    objective = NextWordObjective(corpus, SETTINGS)
    network, rows = objective.build(), np.arange(7)
    (loss,) = objective.losses(network, rows, step=0)
    batch = corpus.train.batch(rows)
    expected = network(batch)[..., 0].sum() / batch["length"].sum()
    torch.testing.assert_close(loss, expected)


def test_a_run_resumes_after_an_interruption(tmp_path):
    request = NextWordRequest(data=DataSettings(source=write(tmp_path / "prose.jsonl", ROWS)), settings=SETTINGS)
    whole = open_word_run(tmp_path / "whole", request, say=lambda text: None)
    assert len(list(whole.train())) == whole.steps
    finish_word_run(whole, request)
    cut = open_word_run(tmp_path / "cut", request, say=lambda text: None)
    for step in cut.train():
        if step.step == 3:
            central.save_checkpoint(cut.state, tmp_path / "cut" / central.CHECKPOINT)
            break
    said = []
    resumed = open_word_run(tmp_path / "cut", request, say=said.append)
    assert resumed.state.step == 3 and "resuming after step 3" in said[-1]
    list(resumed.train())
    finish_word_run(resumed, request)
    one, other = (load_next_word_model(str(tmp_path / name / "model")) for name in ("whole", "cut"))
    assert one.fingerprint == other.fingerprint
    assert len(one.vocabulary) == 6 + SPECIAL and one.facts["best"]["emr3"] > 0.3


def test_a_model_of_subwords(tmp_path, monkeypatch):
    """Trained with the loss of the same words, and evaluated by the ranks of words, on evenly spaced pieces."""
    monkeypatch.setattr(word_training, "RANKED", 4)
    settings = SETTINGS.model_copy(update={"subwords": True, "words": 40, "epochs": 6})
    request = NextWordRequest(data=DataSettings(source=write(tmp_path / "prose.jsonl", ROWS)), settings=settings)
    run = open_word_run(tmp_path / "run", request, say=lambda text: None)
    objective = run.objective
    assert len(objective.corpus.dev) == 8 and objective.evaluated.tolist() == [0, 2, 4, 6]
    network, rows = objective.build(), np.arange(7)
    (loss,) = objective.losses(network, rows, step=0)
    batch = objective.corpus.train.batch(rows)
    torch.testing.assert_close(loss, network(batch)[..., 0].sum() / batch["length"].sum())
    list(run.train())
    facts = finish_word_run(run, request)
    model = load_next_word_model(str(tmp_path / "run" / "model"))
    assert model.subwords == objective.corpus.subwords == load_corpus(tmp_path / "run" / "corpus").subwords
    assert model.vocabulary == objective.corpus.vocabulary and isinstance(model.build(), NextSubword)
    assert facts["best"]["emr3"] > 0.3 and facts["evaluated_pieces"] == 4
    other = replace(model, subwords=Subwords(model.subwords.characters, ()))
    save_next_word_model(tmp_path / "other", other, card="")
    with pytest.raises(InputError, match="does not fit"):
        load_next_word_model(str(tmp_path / "other"))
    card = (tmp_path / "run" / "model" / "README.md").read_text(encoding="utf-8")
    assert "byte-pair sub-words" in card and "on 4 of the held-out pieces" in card and "--set subwords=True" in card


def test_the_command(tmp_path):
    data, chat = (
        write(tmp_path / "prose.jsonl", ROWS),
        write(tmp_path / "chat.jsonl", [{"user": "a", "text": "sea sea"}]),
    )
    settings = [
        option
        for name in ("words=6", "batch=8", "length=5", "dev_share=0.2", "sizes.cells=6", "sizes.byte_dim=4")
        for option in ("--set", name)
    ]
    folder = tmp_path / "run"
    found = CliRunner().invoke(
        app,
        [
            "pretrain",
            "nextword",
            "--data",
            data,
            "--vocabulary",
            chat,
            "--folder",
            str(folder),
            "--epochs",
            "1",
            *settings,
        ],
    )
    assert found.exit_code == 0, found.output
    assert "EMR3" in found.output
    model = load_next_word_model(str(folder / "model"))
    assert model.vocabulary.known == ("sea",)
    card = (folder / "model" / "README.md").read_text(encoding="utf-8")
    assert "`chat.jsonl`" in card and "homespun pretrain nextword --data prose.jsonl --vocabulary chat.jsonl" in card


def test_folders_that_are_no_next_word_model(tmp_path):
    with pytest.raises(InputError, match="homespun pretrain nextword"):
        load_next_word_model(str(tmp_path))
    model = next_word_model.untrained(Vocabulary(("sea",)), SMALL)
    weights = {name: value.detach() for name, value in model.build().named_parameters()}
    made = next_word_model.NextWordModel("", model.vocabulary, SMALL, "", weights)
    next_word_model.save_next_word_model(tmp_path / "good", made, card="")
    assert load_next_word_model(str(tmp_path / "good")).build().output.weight.shape == (5, 6)
    (tmp_path / "good" / "words.txt").write_text("sea\nsky\n", encoding="utf-8")
    load_next_word_model.cache_clear()
    with pytest.raises(InputError, match=r"does not fit config.json and words.txt: output.bias"):
        load_next_word_model(str(tmp_path / "good"))
