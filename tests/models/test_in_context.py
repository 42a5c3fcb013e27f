"""Utterances with text in context: one shared cache gives the same losses as reading everything again."""

import torch
from language_models import write_gpt2, write_llama
from torch.nn import functional

from homespun.models.in_context import in_context_losses, join_sentences
from homespun.models.pretrained import load_pretrained


def read_anew(model, before, tokens, length):
    """The slow way: every utterance with the full context, token by token."""
    found = torch.zeros(tokens.shape)
    for row, size in enumerate(length.tolist()):
        ids = torch.tensor([[*before, *tokens[row, :size].tolist()]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0]
        for place in range(size):
            expected = logits[len(before) + place - 1]
            found[row, place] = -functional.log_softmax(expected, dim=-1)[tokens[row, place]]
    return found


def batch_of(rows):
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows], dtype=torch.int32)
    return {"tokens": tokens, "length": torch.tensor([len(row) for row in rows])}


def test_one_cache_for_all_utterances_gives_the_losses_of_reading_everything_anew(tmp_path):
    rows = [[5, 9, 17, 3, 8], [7, 7, 7, 7], [4, 3, 2, 1, 9], [8, 1, 2, 3]] * 3  # more than are read together
    for write in (write_gpt2, write_llama):
        model = load_pretrained(str(write(tmp_path / write.__name__))).model
        batch = batch_of(rows)
        for before in ([1], [1, 20, 30, 40, 11]):
            found = in_context_losses(model, before, batch)
            torch.testing.assert_close(found, read_anew(model, before, batch["tokens"], batch["length"]))


def test_no_utterance_has_no_losses(tmp_path):
    model = load_pretrained(str(write_gpt2(tmp_path / "base"))).model
    none = {"tokens": torch.zeros(0, 4, dtype=torch.int32), "length": torch.zeros(0, dtype=torch.int64)}
    assert in_context_losses(model, [1], none).shape == (0, 4)


def test_sentences_that_do_not_fit_are_left_out_from_the_first():
    three = [[1, 1], [2, 2, 2], [3]]
    assert join_sentences(three, start=9, between=[0], room=100) == [9, 1, 1, 0, 2, 2, 2, 0, 3, 0]
    assert join_sentences(three, start=9, between=[0], room=7) == [9, 2, 2, 2, 0, 3, 0]
    assert join_sentences(three, start=9, between=[0], room=6) == [9, 3, 0]
    assert join_sentences(three, start=9, between=[], room=1) == [9]
