"""Questions before replies: the losses of the replies alone, computed only where there is a token to predict."""

import pytest
import torch
from language_models import write_gpt2, write_llama
from torch.nn import functional

from homespun.models.frozen_gpt2 import prefix_losses, prepare
from homespun.models.in_context import in_context_losses
from homespun.models.losses import logits_at, packed_losses, padded_losses
from homespun.models.prefix_decoder import PrefixDecoder
from homespun.models.prefix_language import PrefixLanguageModel
from homespun.models.pretrained import load_pretrained

LENGTH, START = torch.tensor([4, 7, 2, 7, 5]), torch.tensor([1, 6, 1, 0, 3])
TOKENS = torch.randint(1, 200, (5, 7), generator=torch.Generator().manual_seed(0))
SCORED = (torch.arange(7) >= START[:, None]) & (torch.arange(7) < LENGTH[:, None])


@pytest.fixture(scope="module", params=[write_gpt2, write_llama])
def model(request, tmp_path_factory):
    return load_pretrained(str(request.param(tmp_path_factory.mktemp("base")))).model


@pytest.fixture
def prefix():
    return torch.randn(5, 2, 16, generator=torch.Generator().manual_seed(1)).requires_grad_()


def ways(model):
    """All ways to compute the losses of this model."""
    found = [packed_losses, padded_losses]
    if model.config.model_type == "gpt2":
        weights = prepare(model)
        found.append(lambda _, prefix, *, tokens, length, start=None: prefix_losses(
            weights, prefix, tokens=tokens, lengths=length, starts=start
        ))  # fmt: skip
    return found


def test_losses_before_the_start_are_zero_and_the_others_the_same(model, prefix):
    whole = padded_losses(model, prefix, tokens=TOKENS, length=LENGTH)
    expected = whole * SCORED
    weight = torch.linspace(1, 2, 35).view(5, 7)
    (slope,) = torch.autograd.grad((expected * weight).sum(), prefix)
    for losses in ways(model):
        found = losses(model, prefix, tokens=TOKENS, length=LENGTH, start=START)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert bool((found[~SCORED] == 0).all()) and bool((found[SCORED] > 0).all())
        (found_slope,) = torch.autograd.grad((found * weight).sum(), prefix)
        torch.testing.assert_close(found_slope, slope, rtol=1e-4, atol=1e-5)


def test_logits_are_computed_where_a_token_is_predicted(model, prefix):
    """Packed: at the positions before the 3 + 1 + 1 + 7 + 2 scored tokens. Padded: from the earliest start on."""
    rows = []
    head = model.get_output_embeddings()
    watched = head.register_forward_hook(lambda *given: rows.append(given[2].shape[:-1].numel()))
    try:
        with torch.no_grad():
            packed_losses(model, prefix, tokens=TOKENS, length=LENGTH, start=START)
            padded_losses(model, prefix[:2], tokens=TOKENS[:2], length=LENGTH[:2], start=torch.tensor([2, 5]))
    finally:
        watched.remove()
    assert rows == [int(SCORED.sum()), 2 * (7 - 2)] and rows[0] == 14


def test_a_model_whose_code_cannot_choose_positions():
    class Plain(torch.nn.Module):
        def forward(self, inputs_embeds):
            return type("Read", (), {"logits": inputs_embeds})

    inputs = torch.arange(12.0).view(1, 4, 3)
    assert logits_at(Plain(), torch.tensor([1, 3]), inputs_embeds=inputs).tolist() == [[[3, 4, 5], [9, 10, 11]]]


# A batch of replies, and the slow way: every token after everything before it, one example at a time

BATCH = {
    "question": torch.tensor([[5, 9, 17, 3], [7, 3, 0, 0], [3, 0, 0, 0], [8, 8, 3, 0]], dtype=torch.int32),
    "question_length": torch.tensor([4, 2, 1, 3]),
    "tokens": torch.tensor([[4, 3, 0], [11, 12, 3], [6, 3, 0], [3, 0, 0]], dtype=torch.int32),
    "length": torch.tensor([2, 3, 2, 1]),
    "context": torch.zeros(4, dtype=torch.int64),
}


def slow_losses(model, before, batch):
    """`before` [S, width] precedes every question."""
    found = torch.zeros(batch["tokens"].shape)
    embed = model.get_input_embeddings()
    columns = [batch[name].tolist() for name in ("question", "question_length", "tokens", "length")]
    for row, (question, size, reply, length) in enumerate(zip(*columns, strict=True)):
        for place in range(length):
            read = torch.tensor(question[:size] + reply[:place])
            inputs = torch.cat((before, embed(read)))[None]
            with torch.no_grad():
                last = model(inputs_embeds=inputs).logits[0, -1]
            found[row, place] = functional.cross_entropy(last, torch.tensor(reply[place]))
    return found


@pytest.mark.parametrize("frozen", [True, False])
def test_the_model_gives_the_losses_of_replies_after_prefix_and_question(model, frozen):
    start = torch.randn(16, generator=torch.Generator().manual_seed(2))
    network = PrefixLanguageModel(model, start=start, contexts=1, tokens=2, kind="shared", frozen=frozen)
    expected = slow_losses(model, start.expand(2, -1), BATCH)
    with torch.no_grad():
        torch.testing.assert_close(network(BATCH), expected, rtol=1e-5, atol=1e-5)


def test_replies_in_context(model):
    for before in ([1], [1, 20, 30]):
        expected = slow_losses(model, model.get_input_embeddings()(torch.tensor(before)), BATCH)
        torch.testing.assert_close(in_context_losses(model, before, BATCH), expected, rtol=1e-5, atol=1e-5)


def test_the_decoder_gives_the_same_log_probabilities_step_by_step(model):
    """Questions of different lengths are in one batch, behind different prefixes. 3 is the separator."""
    prefixes = torch.randn(4, 2, 16, generator=torch.Generator().manual_seed(3))
    decoder = PrefixDecoder(model, separator=3)
    assert (decoder.begin, decoder.end, decoder.vocabulary) == (3, 3, len(model.get_input_embeddings().weight))
    sizes = [size - 1 for size in BATCH["question_length"].tolist()]  # without the separator
    questions = [row[:size] for row, size in zip(BATCH["question"].tolist(), sizes, strict=True)]
    state = decoder.start(questions, prefixes)
    read, found = torch.full((4,), decoder.begin), []
    for place in range(3):
        logits, state = decoder.step(read, state)
        read = BATCH["tokens"][:, place].long()
        found.append(functional.cross_entropy(logits, read, reduction="none"))
    rows = [{name: column[row : row + 1] for name, column in BATCH.items()} for row in range(4)]
    expected = torch.cat([slow_losses(model, one, row) for one, row in zip(prefixes, rows, strict=True)])
    real = torch.arange(3) < BATCH["length"][:, None]
    torch.testing.assert_close(torch.stack(found, dim=1) * real, expected, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        others = [part[torch.tensor([2, 2, 0])] for part in state]
        again, _ = decoder.step(torch.tensor([5, 6, 5]), tuple(others))
        alone, _ = decoder.step(torch.tensor([5]), tuple(part[2:3] for part in state))
    torch.testing.assert_close(again[:1], alone, rtol=1e-5, atol=1e-5)


def test_questions_without_tokens(model):
    prefixes = torch.randn(2, 1, 16)
    state = PrefixDecoder(model, separator=3).start([[], []], prefixes)
    logits, _ = PrefixDecoder(model, separator=3).step(torch.tensor([3, 3]), state)
    assert logits.shape == (2, len(model.get_input_embeddings().weight)) and bool(logits.isfinite().all())
