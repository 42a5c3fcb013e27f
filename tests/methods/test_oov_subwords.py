"""OOV Expansion's control of sub-words: no word is out of vocabulary, at home or before."""

from dataclasses import replace

import pytest
import torch

from homespun.core.errors import RunError, SettingsError
from homespun.core.method import Task
from homespun.data import load_federation
from homespun.methods.oov_expansion import SMALL
from homespun.models.next_word_model import NextWordSizes, save_next_word_model, untrained
from homespun.models.subwords import learn_subwords
from homespun.models.vocabulary import Vocabulary
from homespun.personalization.next_word_export import export_next_word_model
from homespun.personalization.own_words import own_words
from homespun.personalization.suggestions import suggest
from homespun.runs.evaluate import evaluate
from homespun.runs.training import prepare
from homespun.system.method_loading import load_method
from homespun.testing.contract import check_method

OWN = {"ada": "zorblax", "bo": "quibnor", "cy": "wumpfel", "dee": "yiktang"}
TEXTS = {user: [f"we need {own} now, more {('time', 'peace')[number % 2]}" for number in range(20)]
         for user, own in OWN.items()}  # fmt: skip
VALUES = {
    **SMALL, "own_words": "none", "rounds": 6, "cohort": "all", "workers": 0, "lr": 1.0, "batch": 2,
    "server": "fedavg", "server_lr": 1.0, "personalize_lrs": (0.5, 1.0), "personalize_epochs": 8,
    "validation_share": 0.3,
}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model that was not trained, with pieces of all words and a vocabulary without the users' own."""
    vocabulary = Vocabulary(("we", "need", "now", ",", "more", "time", "peace"))
    subwords = learn_subwords([text for some in TEXTS.values() for text in some], size=60)
    torch.manual_seed(0)
    made = untrained(vocabulary, NextWordSizes(byte_dim=6, cells=12, layers=1), subwords)
    weights = {name: value.detach() for name, value in made.build().named_parameters()}
    folder = tmp_path_factory.mktemp("base") / "model"
    save_next_word_model(folder, replace(made, weights=weights), card="")
    return str(folder)


def chats():
    return load_federation([{"user": user, "text": text} for user, some in TEXTS.items() for text in some])


def trained(folder, base, **changed):
    run = prepare("oov_expansion", chats(), folder=folder, settings={**VALUES, "base_model": base, **changed})
    list(run.rounds())
    return run


def test_own_words_are_suggested_without_a_lexicon(base, tmp_path):
    with trained(tmp_path, base) as run:
        found, stored = evaluate(run), run.clients.stored_private(["ada"])["ada"]
        for refused in (
            lambda: suggest(run, "we need", user="ada"),
            lambda: own_words(run, "ada"),
            lambda: export_next_word_model(run, tmp_path / "exported", user="ada"),
        ):
            with pytest.raises(RunError, match="a model of sub-words"):
                refused()
    assert found.oov_rate == pytest.approx(1 / 7) and found.oov_rate_left == 0
    assert found.oov_accuracy == 1 and found.emr3 > 0.8 and found.keystrokes_saved > 0.5
    assert "output.weight" in stored and not any(name.startswith("own.") for name in stored)


def test_both_engines_find_the_same(base):
    found = []
    for engine in ("loop", "cohort"):
        with trained(None, base, engine=engine, rounds=2, personalize_epochs=2) as run:
            found.append((evaluate(run).to_dict(), run.state.broadcast().federated))
    (one, parameters), (other, others) = found
    assert one["user_counts"] == other["user_counts"] and one["loss"] == pytest.approx(other["loss"], rel=1e-3)
    for name, value in parameters.items():
        torch.testing.assert_close(others[name], value, rtol=1e-3, atol=1e-4)


def test_the_contract(base):
    report = check_method("oov_expansion", {**SMALL, "own_words": "none", "base_model": base})
    assert {"wire", "engines", "resume"} <= set(report.passed)


@pytest.mark.parametrize("changed", [{}, {"own_words": "none", "memory": "cache"}])
def test_a_model_of_subwords_has_no_unknown_words(base, changed):
    with pytest.raises(SettingsError, match="a base model of sub-words has no unknown words"):
        load_method("oov_expansion", {"base_model": base, **changed}, Task())
