"""Reply models: vocabulary, folders, warm starts, and the decoder that search uses."""

import json

import pytest
import torch

from homespun.core.errors import InputError
from homespun.models.reply_decoder import ReplyDecoder
from homespun.models.reply_model import ReplyModel, Sizes, load_reply_model, save_reply_model, untrained
from homespun.models.vocabulary import END, UNKNOWN, Vocabulary, most_frequent_words

WORDS = Vocabulary(("hello", "you", ",", "how", "are", "?"))
SMALL = Sizes(word_dim=5, cells=4, layers=2, length=6)


def trained(direction="replies", vocabulary=WORDS):
    torch.manual_seed(1)
    weights = {name: value.detach() for name, value in untrained(vocabulary, SMALL).build().named_parameters()}
    return ReplyModel("made", vocabulary, SMALL, direction, "", weights, {"best": {"bleu": 0.1}})


def test_the_most_frequent_words_come_first_and_ties_are_alphabetical():
    vocabulary = most_frequent_words(["b a", "b a c", "b"], size=6)
    assert vocabulary.known == ("b", "a")
    assert len(vocabulary) == 6
    assert vocabulary.encode("A b c?") == [5, 4, UNKNOWN, UNKNOWN]
    assert vocabulary.decode([5, 4, UNKNOWN]) == "A b..."


def test_a_folder_gives_the_same_model_back(tmp_path):
    save_reply_model(tmp_path / "model", trained(), card="# card\n")
    found = load_reply_model(str(tmp_path / "model"))
    assert (found.vocabulary, found.sizes, found.direction) == (WORDS, SMALL, "replies")
    assert found.facts == {"best": {"bleu": 0.1}}
    for name, value in trained().weights.items():
        assert torch.equal(found.weights[name], value)
    assert len(found.fingerprint) == 64


def test_a_warm_start_keeps_old_columns_and_makes_new_ones_small():
    base = trained()
    torch.manual_seed(2)
    random = Sizes(**SMALL.model_dump())
    fresh = untrained(WORDS, random).build(persona="private", persona_dim=3)
    torch.manual_seed(2)
    network = base.build(persona="private", persona_dim=3, new_columns=0.01)
    first = network.decoder[0].weight_ih_l0
    assert torch.equal(first[:, :5], base.weights["decoder.0.weight_ih_l0"])
    torch.testing.assert_close(first[:, 5:], 0.01 * fresh.decoder[0].weight_ih_l0[:, 5:])
    assert torch.equal(network.output.weight, base.weights["output.weight"])


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.json", "{", "cannot be read"),
        ("config.json", "[]", "not that of a reply model"),
        ("words.txt", "hello\nhello\n", "must be different"),
        ("words.txt", "hello\n", "does not fit"),
        ("model.safetensors", "x", "cannot be read"),
    ],
)
def test_a_damaged_folder_is_rejected(tmp_path, file, content, said):
    folder = tmp_path / "model"
    save_reply_model(folder, trained(), card="")
    (folder / file).write_text(content)
    with pytest.raises(InputError, match=said):
        load_reply_model(str(folder))


def test_a_missing_folder_names_the_command_that_makes_one(tmp_path):
    with pytest.raises(InputError, match="homespun pretrain seq2seq"):
        load_reply_model(str(tmp_path / "nothing"))


def test_sizes_that_do_not_fit_the_weights_are_rejected(tmp_path):
    folder = tmp_path / "model"
    save_reply_model(folder, trained(), card="")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "sizes": {**config["sizes"], "cells": 5}}))
    with pytest.raises(InputError, match=r"does not fit.*encoder|decoder"):
        load_reply_model(str(folder))


@pytest.mark.parametrize(
    ("persona", "in_question", "readers"),
    [("none", False, None), ("private", False, None), ("private", True, [0]), ("private", False, [1])],
)
def test_decoder_steps_give_the_losses_of_the_model(persona, in_question, readers):
    torch.manual_seed(3)
    network = untrained(WORDS, SMALL).build(
        persona=persona, persona_dim=3, readers=readers, in_question=in_question, new_columns=1.0
    )
    parameters = {name: value.detach() for name, value in network.named_parameters()}
    decoder = ReplyDecoder(parameters, layers=2)
    questions, reply = [[4, 5, 6], [7]], [8, 9, 4]
    own = parameters["persona.embedding"].expand(2, -1) if persona == "private" else None
    state, read, log_probs = decoder.start(questions, own), torch.full((2,), decoder.begin), []
    for word in (*reply, END):
        logits, state = decoder.step(read, state)
        log_probs.append(logits.log_softmax(dim=1)[:, word])
        read = torch.full((2,), word)
    batch = {
        "question": torch.tensor([[4, 5, 6], [7, 0, 0]]),
        "question_length": torch.tensor([3, 1]),
        "reply": torch.tensor([reply, reply]),
        "length": torch.tensor([4, 4]),
    }
    torch.testing.assert_close(-torch.stack(log_probs, dim=1), network(batch), rtol=0, atol=1e-5)
