"""Replies as tokens, by hand: what is cut, what is scored, and where the losses come from."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from homespun.core.errors import SettingsError
from homespun.models.pretrained import Pretrained
from homespun.models.token_batches import encode_replies, join_questions, select_replies, token_window

END = 99


class Letters:
    """One token per letter: a is 1, b is 2; a space is 27, a star 28."""

    signs = " abcdefghijklmnopqrstuvwxyz"

    def __call__(self, texts, add_special_tokens):
        numbers = {**{sign: place for place, sign in enumerate(self.signs)}, " ": 27, "*": 28}
        return {"input_ids": [[numbers[sign] for sign in text] for text in texts]}

    def decode(self, tokens):
        return "".join(" " if token == 27 else self.signs[token] for token in tokens)


LETTERS = Pretrained(
    "letters", SimpleNamespace(config=SimpleNamespace(max_position_embeddings=20)), Letters(), fingerprint=""
)


def encoded(prompt, text, length):
    """The question, the reply and the number of words of one pair."""
    data = encode_replies([prompt], [text], None, LETTERS, length=length, prefix=1, separator=END)
    question, tokens = (data[name][0].tolist() for name in ("question", "tokens"))
    assert [len(question), len(tokens)] == [data["question_length"][0], data["length"][0]]
    return question, tokens, int(data["words"][0])


@pytest.mark.parametrize(
    ("text", "length", "question", "tokens", "words"),
    [
        ("ef", 8, [1, 2, 3, 4, END], [5, 6, END], 2),  # everything: 4 + 1 + 2 + 1 tokens, a word and the end
        ("ef", 7, [2, 3, 4, END], [5, 6, END], 2),  # the question is cut at its start
        ("ef", 4, [END], [5, 6, END], 2),  # nothing of it is left
        ("e f", 9, [1, 2, 3, 4, END], [5, 27, 6, END], 3),  # two words and the end
        ("efg", 4, [END], [5, 6, 7], 1),  # no room for the end: the reply is cut, and its end is not scored
        ("e fgh", 5, [END], [5, 27, 6, 7], 2),  # cut at its end; part of a word is a word
        ("*", 8, [1, 2, 3, 4, END], [28, END], 2),  # without words: one word, as in FedNLG
        ("", 8, [1, 2, 3, 4, END], [END], 2),
    ],
)
def test_what_is_cut_and_what_is_scored(text, length, question, tokens, words):
    assert encoded("abcd", text, length) == (question, tokens, words)


def test_rows_are_padded_and_kept_in_order():
    data = encode_replies(
        ["ab", None, "c"], ["d", "ef", ""], np.array([1, 0, 2]), LETTERS, length=8, prefix=1, separator=END
    )
    assert data["question"].tolist() == [[1, 2, END], [END, 0, 0], [3, END, 0]]
    assert data["question_length"].tolist() == [3, 1, 2]
    assert data["tokens"].tolist() == [[4, END, 0], [5, 6, END], [END, 0, 0]]
    assert (data["length"].tolist(), data["context"].tolist()) == ([2, 3, 1], [1, 0, 2])
    joined = join_questions(data)
    assert joined.tokens.tolist() == [[1, 2, END, 4, END], [END, 5, 6, END, 0], [3, END, END, 0, 0]]
    assert (joined.length.tolist(), joined.start.tolist()) == ([5, 4, 3], [3, 1, 2])
    losses = torch.arange(15.0).view(3, 5)
    assert select_replies(losses, data).tolist() == [[3, 4, 0], [6, 7, 8], [12, 0, 0]]


def test_no_replies():
    data = encode_replies([], [], None, LETTERS, length=8, prefix=1, separator=END)
    assert {name: tuple(one.shape) for name, one in data.items()} == {
        "question": (0, 1), "question_length": (0,), "tokens": (0, 1), "length": (0,), "words": (0,), "context": (0,),
    }  # fmt: skip
    joined = join_questions(data)
    assert joined.tokens.shape == (0, 0) and select_replies(torch.zeros(0, 0), data).shape == (0, 1)


def test_utterances_are_read_as_they_are():
    batch = {"tokens": torch.tensor([[1, 2], [3, 0]], dtype=torch.int32), "length": torch.tensor([2, 1])}
    assert join_questions(batch).start is None and join_questions(batch).tokens.tolist() == [[1, 2], [3, 0]]
    losses = torch.rand(2, 2)
    assert select_replies(losses, batch) is losses


def test_more_tokens_than_positions_are_refused():
    with pytest.raises(SettingsError, match="length: 20 tokens and 1 before them exceed the 20 positions"):
        encode_replies(["a"], ["b"], None, LETTERS, length=20, prefix=1, separator=END)


def test_the_window_counts_the_separator_before_the_reply():
    window = token_window(LETTERS, 4, others=1)
    assert window.sizes(["abc", "abcd"]) == [4, 5]  # the second one is cut
