"""Words of English text, and text of words: exact small facts."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homespun.core.words import join_words, words

WORDS = {
    "Well, I'm not sure.": ["well", ",", "i'm", "not", "sure", "."],
    "Don\u2019t \u2018you\u2019 know?": ["don't", "you", "know", "?"],
    "Mm-hmm. I-I'm fine": ["mm-hmm", ".", "i-i'm", "fine"],
    "tell 'em nothin' about rock'n'roll": ["tell", "em", "nothin", "about", "rock'n'roll"],
    "Oh... no. . . so\u2026 hm..": ["oh", "...", "no", "...", "so", "...", "hm", "..."],
    "What?! No!!! Why?!?! Who? ? Go!?": ["what", "?", "!", "no", "!", "why", "?", "!", "who", "?", "go", "!", "?"],
    "1,000 of 3.5 at 10:30 in 1990.": ["1,000", "of", "3.5", "at", "10:30", "in", "1990", "."],
    "the 80s, the 2nd": ["the", "80s", ",", "the", "2nd"],
    "At 5 a.m. the F.B.I came. So?": ["at", "5", "a.m.", "the", "f.b.i.", "came", ".", "so", "?"],
    "Mr. Geller and Mrs Geller, Dr. Green": ["mr", "geller", "and", "mrs", "geller", ",", "dr", "green"],
    "I was just-- what\u2014no - or- -hm": ["i", "was", "just", "-", "what", "-", "no", "-", "or", "-", "hm"],
    "note: this; :) ;-)": ["note", ":", "this", ";", "-"],
    'He said "yes" (laughs) [to Joey] *sigh*': ["he", "said", "yes", "laughs", "to", "joey", "sigh"],
    "$5 & 10% of a_b/c @d #e": ["$", "5", "&", "10", "%", "of", "a", "b", "c", "d", "e"],
    "CAF\u00c9 cafe\u0301 \u00bfqu\u00e9?": ["caf\u00e9", "caf\u00e9", "qu\u00e9", "?"],
    "`tis its` don`t": ["tis", "its", "don't"],
    "co\u00adop \U0001f600 x\u200by": ["coop", "xy"],
    "हिन्दी क्\u200dष में": ["हिन्दी", "क्ष", "में"],
    "שָׁלוֹם עולם!": ["שָׁלוֹם", "עולם", "!"],
    "q\u0308uux's e\u0301t\u0308": ["q\u0308uux's", "\u00e9\u1e97"],
    "\u0130stanbul \u0308 (\u00b4\u0e34) \U00020000\u0308": ["i\u0307stanbul", "\U00020000\u0308"],
    "ok\U0001f44d\U0001f3fdok 1\ufe0f\u20e3 a\u2764\ufe0fb \U0001f468\u200d\U0001f469": ["ok", "ok", "1", "a", "b"],
    " \n\t": [],
    "": [],
}
JOINED = {
    "well , i'm not sure . are you ? yes": "Well, I'm not sure. Are you? Yes",
    "oh ... no ! i think i'll go": "Oh... no! I think I'll go",
    "what ? ! i-i don't": "What?! I-I don't",
    "is it , if i've": "Is it, if I've",
    "... well - so ; hm : $ 5 or 10 % & more": "... Well - so; hm: $5 or 10% & more",
    "hi mr geller . dr green is in": "Hi Mr. Geller. Dr. Green is in",
    "at 5 a.m. i slept": "At 5 a.m. I slept",
    "": "",
}


@pytest.mark.parametrize("text", WORDS)
def test_words_of_a_text(text: str) -> None:
    assert words(text) == WORDS[text]


@pytest.mark.parametrize("joined", JOINED)
def test_text_of_words(joined: str) -> None:
    assert join_words(joined.split()) == JOINED[joined]


@settings(max_examples=500, deadline=None)
@given(st.text("abimrsdI 05.,?!'-\"$%&:;()_\u2019\u2026\u2014", max_size=30))
def test_joined_words_are_the_same_words_again(text: str) -> None:
    assert words(join_words(words(text))) == words(text)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_any_text_has_words_without_spaces(text: str) -> None:
    assert all(token and not any(sign.isspace() for sign in token) for token in words(text))


def test_words_are_fast() -> None:
    line = "Well, I don't know... (laughs) Do you? It's 10:30 already, and we haven't even started yet!"
    start = time.process_time()
    for _ in range(10_000):
        words(line)
    assert time.process_time() - start < 2  # takes about 0.3 s: half a minute for a million lines
