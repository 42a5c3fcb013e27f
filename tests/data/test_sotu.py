"""The presidents, sentence by sentence."""

from __future__ import annotations

import numpy as np
import pytest

from homespun.core.errors import DataError, SettingsError
from homespun.data.sentences import split_sentences
from homespun.data.sotu import load
from homespun.data.table import TableFederation


@pytest.mark.parametrize(
    "sentences",
    [
        [
            "Mr. Speaker, Mr. President, distinguished Members.",
            "I thank Dr. King and Gen. George C. Marshall.",
        ],
        [
            "The U.S. Government acts.",
            "We trust the U.S.",
            "The world does not.",
            "It began at 9 p.m. Eastern time.",
        ],
        [
            "It cost $1.5 billion.",
            "In 1983, 3.2 percent.",
            "See No. 5 of the report.",
            "The answer is no.",
            "We go on.",
        ],
        ['He said, "We will go."', "And they went.", '"Why?"', '"Because."', "(So it is.)", "Next."],
        [
            "I. No line should be allowed.",
            "IV. A power should be reserved.",
            "2. We must build.",
            "A. Housing is next.",
        ],
        ["We won World War II.", "Prices rose.", "He is taller than I.", "She is not."],
        ["Is it so?", "Yes!", "Well... maybe it is...", "But who knows?!", "We do."],
        [
            "J. Q. Adams and Martin Luther King, Jr. spoke of it.",
            "He honored John Smith, Jr.",
            "The House rose.",
        ],
        ["The act of Sept. 3 passed H.R. 1 in St. Louis at 5 per cent.", "The rest failed."],
        ["We can; we must: we will—and now.", "$5 is enough.", "1790 was the first year."],
    ],
)
def test_sentences_are_found_again(sentences: list[str]) -> None:
    assert split_sentences(" ".join(sentences)) == sentences


def test_line_breaks_end_sentences_and_bare_numbers_are_not_sentences() -> None:
    assert split_sentences("THE TARIFF\n\nWe  need\tit\n1790\nIV.\n— .\n* * *\nI agree.") == [
        "THE TARIFF",
        "We need it",
        "I agree.",
    ]
    assert split_sentences("") == []


@pytest.fixture(scope="module")
def everything() -> TableFederation:
    return load({})


def test_the_whole_corpus(everything: TableFederation) -> None:
    assert len(everything.users) == 43 and everything.users[0] == "George Washington"
    assert everything.contexts == ("spoken", "written") and everything.labels == ()
    assert 72_000 < len(everything.texts) < 77_000
    assert not any("[Laughter]" in text or "[Applause]" in text for text in everything.texts)


def test_a_president_with_separate_terms_is_one_user(everything: TableFederation) -> None:
    assert sum("Cleveland" in user for user in everything.users) == 1
    assert sum("Trump" in user for user in everything.users) == 1


def test_since_and_until(everything: TableFederation) -> None:
    modern, early = load({"since": 1913, "label": "party"}), load({"until": 1799})
    assert len(modern.users) == 19
    assert modern.labels == ("Democratic", "Republican")
    assert list(early.users) == ["George Washington", "John Adams"]
    assert list(early.examples(0).texts) == list(everything.examples(0).texts)
    both = sum(len(np.unique(modern.examples(user).contexts)) == 2 for user in range(19))  # type: ignore[arg-type]
    assert both == 7
    assert len({modern.fingerprint, early.fingerprint, everything.fingerprint}) == 3


def test_label_may_be_the_context() -> None:
    federation = load({"since": 1974, "until": 1981, "label": "context"})
    assert federation.labels == federation.contexts == ("spoken", "written")
    examples = federation.examples(0)
    assert np.array_equal(examples.labels, examples.contexts)  # type: ignore[arg-type]


def test_wrong_settings() -> None:
    with pytest.raises(DataError, match="no message since 2090 and until None"):
        load({"since": 2090})
    with pytest.raises(SettingsError, match=r"unknown setting 'sinse'\. Did you mean 'since'\?"):
        load({"sinse": 1913})
