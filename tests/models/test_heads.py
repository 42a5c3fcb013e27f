"""Heads over a frozen language model: the averaged head, the feature cache, the loss in blocks."""

import pytest
import torch
from language_models import write_gpt2, write_llama
from torch.nn import functional

from homespun.core.errors import InputError
from homespun.models import heads
from homespun.models.heads import SharedHead, SplitHeads, output_head, token_losses
from homespun.models.pretrained import load_pretrained

KINDS = {
    "gpt2 tied": lambda folder: write_gpt2(folder),
    "gpt2 untied": lambda folder: write_gpt2(folder, tied=False),
    "llama": lambda folder: write_llama(folder),
}


@pytest.fixture(params=KINDS)
def pretrained(request, tmp_path):
    return load_pretrained(str(KINDS[request.param](tmp_path / "model")))


@pytest.fixture
def gpt2(tmp_path):
    return load_pretrained(str(write_gpt2(tmp_path / "model")))


def a_batch(lengths, contexts=None, *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 300, (len(lengths), max(lengths)), generator=generator, dtype=torch.int32)
    length = torch.tensor(lengths)
    tokens[torch.arange(max(lengths)) >= length[:, None]] = 0
    return {"tokens": tokens, "length": length, "context": torch.tensor(contexts or [0] * len(lengths))}


def counted(model):
    """The number of utterances that the backbone has read, filler included."""
    rows = []
    model.backbone.register_forward_hook(
        lambda _, __, given, ___: rows.append(len(given["input_ids"])), with_kwargs=True
    )
    return rows


def plain_losses(pretrained, batch, *matrices):
    """One utterance at a time, a product with every head, their logits averaged."""
    losses = torch.zeros(batch["tokens"].shape)
    for row, length in enumerate(batch["length"].tolist()):
        tokens = batch["tokens"][row, :length].long()
        inputs = torch.cat((torch.tensor([pretrained.bos]), tokens[:-1]))[None]
        hidden = pretrained.model.base_model(input_ids=inputs).last_hidden_state[0]
        mine = [matrix[batch["context"][row]] if matrix.dim() == 3 else matrix for matrix in matrices]
        logits = sum(hidden @ matrix.T for matrix in mine) / len(mine)
        losses = losses.index_put(
            (torch.full((length,), row), torch.arange(length)),
            functional.cross_entropy(logits, tokens, reduction="none"),
        )
    return losses


def random_heads(model):
    generator = torch.Generator().manual_seed(3)
    named = {name: value for name, value in model.named_parameters() if not name.startswith("backbone.")}
    return {
        name: (value.detach() + 0.1 * torch.randn(value.shape, generator=generator)).requires_grad_()
        for name, value in named.items()
    }


def test_two_heads_averaged_are_two_products_averaged(pretrained):
    model, batch = SplitHeads(pretrained, contexts=3), a_batch([5, 4, 9, 30, 7], [2, 0, 2, 0, 2])
    values = random_heads(model)
    ours = torch.func.functional_call(model, values, (batch,))
    plain = plain_losses(pretrained, batch, values["personal.head"], values["context.heads"])
    torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-5)
    weights = torch.rand(ours.shape, generator=torch.Generator().manual_seed(0))
    ours_slopes = torch.autograd.grad((ours * weights).sum(), list(values.values()))
    plain_slopes = torch.autograd.grad((plain * weights).sum(), list(values.values()))
    for one, other in zip(ours_slopes, plain_slopes, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    gradient = ours_slopes[1]
    assert not gradient[1].any() and gradient[0].any() and gradient[2].any()  # no utterance in context 1
    torch.testing.assert_close(gradient.sum(0), ours_slopes[0])  # half of the slope each


def test_one_head(pretrained):
    model, batch = SharedHead(pretrained), a_batch([5, 4, 9])
    values = random_heads(model)
    ours = torch.func.functional_call(model, values, (batch,))
    plain = plain_losses(pretrained, batch, values["head.weight"])
    torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-5)
    assert not ours[1, 4:].any()  # nothing beyond an utterance's end


def test_before_training_it_is_the_pretrained_model(pretrained):
    batch = a_batch([5, 12])
    inputs = torch.cat((torch.full((2, 1), pretrained.bos), batch["tokens"].long()), dim=1)
    logits = pretrained.model(input_ids=inputs).logits[:, :-1]
    expected = functional.cross_entropy(logits.flatten(0, 1), batch["tokens"].flatten().long(), reduction="none")
    expected = expected.view(2, 12) * (torch.arange(12) < batch["length"][:, None])
    for model in (SharedHead(pretrained), SplitHeads(pretrained, contexts=2)):
        torch.testing.assert_close(model(batch), expected, atol=1e-5, rtol=1e-5)


def test_the_heads_are_untied(gpt2):
    before = gpt2.embeddings.clone()
    model = SplitHeads(gpt2, contexts=1)
    with torch.no_grad():
        model.personal["head"].add_(1)
        output_head(gpt2).add_(1)
    assert torch.equal(gpt2.embeddings, before)


@pytest.mark.parametrize("count", [1, heads.ROWS, 2 * heads.ROWS + 44])
def test_the_loss_in_pieces(count):
    generator = torch.Generator().manual_seed(0)
    hidden, targets = torch.randn(count, 16, generator=generator), torch.randint(0, 50, (count,), generator=generator)
    head = torch.randn(50, 16, generator=generator).requires_grad_()
    ours, plain = token_losses(hidden, head, targets=targets), functional.cross_entropy(
        hidden @ head.T, targets, reduction="none"
    )  # fmt: skip
    torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-5)
    weights = torch.rand(count, generator=generator)
    (one,), (other,) = (torch.autograd.grad((some * weights).sum(), head) for some in (ours, plain))
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_large_scores_do_not_overflow():
    losses = token_losses(torch.tensor([[1000.0]]), torch.tensor([[1.0], [0.0]]), targets=torch.tensor([1]))
    assert losses.tolist() == [1000.0]


def test_an_utterance_is_read_once(gpt2):
    model = SharedHead(gpt2)
    rows = counted(model)
    batch = a_batch([5, 6, 7, 8])
    first = model(batch)
    assert rows == [heads.GROUP]
    turned = {name: column[[3, 1, 1, 0]] for name, column in batch.items()}
    again = model(turned)
    assert rows == [heads.GROUP]  # not read again
    assert torch.equal(again, first[[3, 1, 1, 0]])


def test_what_is_remembered_changes_no_bit(tmp_path):
    # wide enough that an utterance's last bits depend on how much filler it is read with
    wide = load_pretrained(str(write_gpt2(tmp_path / "model", width=256)))
    remembers, forgets = SharedHead(wide), SharedHead(wide)
    forgets.reader.limit_bytes = 0
    rows = counted(forgets)
    batch = a_batch([5, 4, 9, 30, 7, 8, 40, 6])
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):
        some = torch.randperm(8, generator=generator)[:3]
        part = {name: column[some] for name, column in batch.items()}
        assert torch.equal(remembers(part), forgets(part))
    assert not forgets.reader.kept and len(rows) > 6


def test_a_full_memory_keeps_what_it_has(gpt2):
    model = SharedHead(gpt2)
    model.reader.limit_bytes = 5 * (16 * 4 + 4)  # five tokens of width 16, and their numbers
    batch = a_batch([5, 6])
    first = model(batch)
    assert len(model.reader.kept) == 1 and model.reader.kept_bytes == model.reader.limit_bytes
    assert torch.equal(model(batch), first)


def test_the_longest_utterance_fits(tmp_path):
    small = load_pretrained(str(write_gpt2(tmp_path / "model", positions=13)))
    assert torch.isfinite(SharedHead(small)(a_batch([12, 4]))).all()


@pytest.mark.parametrize("make", [SharedHead, lambda base: SplitHeads(base, contexts=2)])
def test_a_batch_without_utterances(gpt2, make):
    empty = {name: column[:0] for name, column in a_batch([5]).items()}
    assert make(gpt2)(empty).shape == (0, 5)


def test_a_head_with_more_than_a_product_is_refused(gpt2):
    size = len(gpt2.embeddings)
    gpt2.model.lm_head.bias = torch.nn.Parameter(torch.ones(size), requires_grad=False)
    try:
        with pytest.raises(InputError, match="a bias, a scale or a cap"):
            SharedHead(gpt2)
    finally:
        gpt2.model.lm_head.bias = None
