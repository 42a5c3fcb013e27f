"""The frozen GPT-2 with a prefix is GPT2LMHeadModel on embedded inputs, in value and in the prefix's gradient."""

import math

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from homespun.models import frozen_gpt2, row_layout
from homespun.models.frozen_gpt2 import FrozenGpt2, prefix_losses, prepare

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
WORDS, WIDTH, POSITIONS = 19, 12, 16


def make(*, layers: int = 2, tied: bool = True, dtype: torch.dtype = torch.float64) -> GPT2LMHeadModel:
    """Biases and norms differ from their defaults, so that a forgotten one shows."""
    torch.manual_seed(3)
    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=POSITIONS,
        n_embd=WIDTH,
        n_layer=layers,
        n_head=3,
        tie_word_embeddings=tied,
        attn_implementation="eager",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval().requires_grad_(False)


def make_texts(lengths: list[int], *, longest: int, vectors: int, dtype: torch.dtype = torch.float64):
    torch.manual_seed(4)
    prefix = torch.randn(len(lengths), vectors, WIDTH, dtype=dtype, requires_grad=True)
    return prefix, torch.randint(WORDS, (len(lengths), longest)), torch.tensor(lengths)


def plain_losses(model: GPT2LMHeadModel, prefix: Tensor, *, tokens: Tensor, lengths: Tensor) -> Tensor:
    """The result of transformers: padded, with an attention mask."""
    vectors = prefix.shape[1]
    is_text = torch.arange(tokens.shape[1]) < lengths[:, None]
    inputs = torch.cat((prefix, model.transformer.wte(tokens)), dim=1)
    mask = torch.cat((torch.ones(prefix.shape[:2], dtype=torch.bool), is_text), dim=1).long()
    logits = model(inputs_embeds=inputs, attention_mask=mask).logits[:, vectors - 1 : -1]
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none")
    return losses.view_as(tokens) * is_text


def weighted_gradient(losses: Tensor, prefix: Tensor) -> Tensor:
    torch.manual_seed(5)
    (grad,) = torch.autograd.grad((losses * torch.randn_like(losses)).sum(), prefix)
    return grad


def assert_equals_transformers(model: GPT2LMHeadModel, prefix: Tensor, *, tokens: Tensor, lengths: Tensor) -> None:
    tolerance = TOLERANCE[prefix.dtype]
    expected = plain_losses(model, prefix, tokens=tokens, lengths=lengths)
    losses = prefix_losses(prepare(model), prefix, tokens=tokens, lengths=lengths)
    torch.testing.assert_close(losses, expected, rtol=tolerance, atol=tolerance)
    ours, theirs = weighted_gradient(losses, prefix), weighted_gradient(expected, prefix)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * max(1.0, float(theirs.abs().max())))


FULL = [7, 7, 7]
RAGGED = [7, 1, 4, 4, 2]
SHORTER_THAN_THE_TOKENS = [5, 2]
WITH_EMPTY = [0, 7, 0, 3]
ONE = [6]


@pytest.mark.parametrize("lengths", [FULL, RAGGED, SHORTER_THAN_THE_TOKENS, WITH_EMPTY, ONE])
@pytest.mark.parametrize("vectors", [1, 3])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_transformers(lengths, vectors, tied, dtype):
    prefix, tokens, lengths = make_texts(lengths, longest=7, vectors=vectors, dtype=dtype)
    assert_equals_transformers(make(tied=tied, dtype=dtype), prefix, tokens=tokens, lengths=lengths)


@pytest.mark.parametrize("layers", [1, 3])
def test_equals_transformers_with_any_number_of_layers(layers):
    prefix, tokens, lengths = make_texts(RAGGED, longest=7, vectors=2)
    assert_equals_transformers(make(layers=layers), prefix, tokens=tokens, lengths=lengths)


@pytest.mark.parametrize(
    ("rows", "words", "squares"),
    [(1, 512, 1000), (9, 512, 1000), (1024, 1, 1000), (1024, 7, 0), (1024, 512, 0), (1024, 512, 40), (9, 18, 20)],
)
def test_neither_chunks_nor_blocks_nor_groups_show(monkeypatch, rows, words, squares):
    monkeypatch.setattr(row_layout, "CHUNK_ROWS", rows)
    monkeypatch.setattr(frozen_gpt2, "_BLOCK_WORDS", words)
    monkeypatch.setattr(row_layout, "MAX_WASTED_SCORES", squares)
    prefix, tokens, lengths = make_texts([7, 1, 0, 4, 4, 2, 7], longest=7, vectors=2)
    assert_equals_transformers(make(), prefix, tokens=tokens, lengths=lengths)


def test_gradcheck():
    weights = prepare(make())
    prefix, tokens, lengths = make_texts([3, 0, 1], longest=3, vectors=2)
    assert torch.autograd.gradcheck(
        lambda each: prefix_losses(weights, each, tokens=tokens, lengths=lengths), (prefix,)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_unlikely_word_has_its_large_loss_and_its_gradient(dtype, monkeypatch):
    monkeypatch.setitem(TOLERANCE, torch.float32, 1e-4)  # logits of a thousand have four digits after the point
    model = make(tied=False, dtype=dtype)
    with torch.no_grad():
        model.lm_head.weight.mul_(200)  # differences of logits far beyond what exp can hold
    prefix, tokens, lengths = make_texts(RAGGED, longest=7, vectors=1, dtype=dtype)
    assert bool((plain_losses(model, prefix, tokens=tokens, lengths=lengths) > 800).any())
    assert_equals_transformers(model, prefix, tokens=tokens, lengths=lengths)


def test_logits_all_far_below_zero_are_no_harder():
    model = make(tied=False, dtype=torch.float32)
    with torch.no_grad():
        model.transformer.ln_f.bias.fill_(3)
        model.lm_head.weight.sub_(5)  # every logit falls by 180
    prefix, tokens, lengths = make_texts(RAGGED, longest=7, vectors=1, dtype=torch.float32)
    expected = plain_losses(model, prefix, tokens=tokens, lengths=lengths)
    got = prefix_losses(prepare(model), prefix, tokens=tokens, lengths=lengths)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)  # logits of 180 have five digits after the point


def test_a_model_that_knows_nothing_gives_every_word_the_same_loss():
    model = make()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    prefix, tokens, lengths = make_texts([2, 1], longest=2, vectors=1)
    losses = prefix_losses(prepare(model), prefix, tokens=tokens, lengths=lengths)
    expected = torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=torch.float64) * math.log(WORDS)
    torch.testing.assert_close(losses, expected, rtol=1e-14, atol=1e-14)
    assert not weighted_gradient(losses, prefix).any()


def test_without_gradients_the_losses_are_the_same():
    weights = prepare(make())
    prefix, tokens, lengths = make_texts(RAGGED, longest=7, vectors=1)
    expected = prefix_losses(weights, prefix, tokens=tokens, lengths=lengths)
    with torch.no_grad():
        quiet = prefix_losses(weights, prefix, tokens=tokens, lengths=lengths)
    frozen = prefix_losses(weights, prefix.detach(), tokens=tokens, lengths=lengths)
    assert expected.requires_grad and not quiet.requires_grad and not frozen.requires_grad
    torch.testing.assert_close(quiet, expected, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(frozen, expected, rtol=1e-14, atol=1e-14)


def test_texts_all_empty_have_no_loss_and_no_gradient():
    prefix, tokens, lengths = make_texts([0, 0], longest=3, vectors=1)
    losses = prefix_losses(prepare(make()), prefix, tokens=tokens, lengths=lengths)
    assert not losses.any()
    assert not weighted_gradient(losses, prefix).any()


def test_no_texts_at_all():
    prefix, tokens, lengths = make_texts([], longest=3, vectors=1)
    assert prefix_losses(prepare(make()), prefix, tokens=tokens, lengths=lengths.long()).shape == (0, 3)


def test_what_follows_the_end_of_a_text_changes_nothing():
    weights = prepare(make())
    prefix, tokens, lengths = make_texts([2, 4], longest=4, vectors=1)
    other = tokens.clone()
    other[0, 2:] = (other[0, 2:] + 1) % WORDS
    one, two = (prefix_losses(weights, prefix, tokens=each, lengths=lengths) for each in (tokens, other))
    assert torch.equal(one, two)


def test_the_weights_are_the_models_own_memory():
    model = make()
    weights = prepare(model)
    assert isinstance(weights, FrozenGpt2)
    assert weights.head.data_ptr() == weights.words.data_ptr() == model.transformer.wte.weight.data_ptr()
    assert weights.blocks[1].mlp_in.weight.data_ptr() == model.transformer.h[1].mlp.c_fc.weight.data_ptr()


def test_a_text_that_does_not_fit_is_named():
    prefix, tokens, lengths = make_texts([POSITIONS + 1], longest=POSITIONS + 1, vectors=1)
    with pytest.raises(ValueError, match=r"prefix of 1 vectors and texts of up to 17 tokens.*at most 16 positions"):
        prefix_losses(prepare(make()), prefix, tokens=tokens, lengths=lengths)


def test_another_architecture_is_refused_with_all_its_faults():
    model = make()
    model.config.activation_function = "relu"
    model.config.scale_attn_weights = False
    with pytest.raises(ValueError, match=r"activation_function is 'relu'.*scale_attn_weights is False"):
        prepare(model)
