"""Suggestions while typing, and the words that could be learned."""

import torch

from homespun.models.next_word import NextWord
from homespun.models.suggester import Suggester
from homespun.models.vocabulary import Vocabulary
from homespun.personalization.live_text import LiveText, new_words, split_text

WORDS = Vocabulary(("the", "sea", "is", "see", "don't", "blue", ","))


def suggester():
    torch.manual_seed(2)
    network = NextWord(WORDS, byte_dim=5, cells=6)
    return Suggester(WORDS, {name: value.detach() for name, value in network.named_parameters()})


def test_the_word_that_is_begun():
    assert split_text("the se") == ("the ", "se")
    assert split_text("the ") == ("the ", "") and split_text("sea,") == ("sea,", "")
    assert split_text("I don't") == ("I ", "don't") and split_text("don'") == ("", "don'")
    assert split_text("yes -no") == ("yes -", "no") and split_text("yes -") == ("yes -", "")
    assert split_text("में हिन्") == ("में ", "हिन्")


def test_a_word_is_found_however_it_is_typed():
    live = LiveText(suggester())
    assert live.complete("don\u2019") == live.complete("DON'").lower() == "don't "


def test_keystrokes_give_what_the_whole_text_gives():
    live, fresh = LiveText(suggester()), suggester()
    for text in ("t", "the", "the ", "the s", "the sea", "the sea, ", "the sea", "see ", "", "don'"):
        before, begun = split_text(text)
        whole = fresh.suggest(fresh.read_all(before.replace(",", " ,").split()), begun)
        assert live.suggestions(text) == whole


def test_taking_a_suggestion():
    live = LiveText(suggester())
    assert live.complete("the is bl") == "the is blue " and live.complete("Se", 1) in ("Sea ", "See ")
    assert live.complete("zzz") == "zzz" and live.complete("bl", 1) == "bl"
    assert live.complete("") == live.suggestions("")[0].word.capitalize() + " "


def test_words_that_could_be_learned():
    found = new_words(["The zorblax is; zorblax!", "quibnor " + "z" * 40], suggester())
    assert found == {"zorblax": 2, "quibnor": 1}
