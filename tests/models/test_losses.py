"""Packed utterances have the same losses as separate ones."""

from types import SimpleNamespace

import pytest
import torch
from language_models import write_gpt2, write_llama
from torch import nn
from transformers import AutoModelForCausalLM, BloomConfig, MistralConfig, RobertaConfig

from homespun.models import losses
from homespun.models.losses import can_pack, pack_rows, packed_losses, padded_losses
from homespun.models.prefix_language import PrefixLanguageModel
from homespun.models.pretrained import load_pretrained, with_lora

LENGTH = torch.tensor([4, 0, 7, 2, 7])
SMALL = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.fixture(scope="module", params=[write_gpt2, write_llama])
def backbone(request, tmp_path_factory):
    return load_pretrained(str(request.param(tmp_path_factory.mktemp("base")))).model


@pytest.fixture
def read():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 200, (5, 7), generator=generator)
    prefix = torch.randn(5, 2, 16, generator=generator).requires_grad_()
    return prefix, tokens


def test_neighbours_share_a_row_until_it_is_full(monkeypatch):
    monkeypatch.setattr(losses, "ROW", 10)
    assert list(pack_rows(torch.tensor([4, 6, 1, 12, 3, 3]))) == [(0, 2), (2, 3), (3, 4), (4, 6)]
    assert list(pack_rows(torch.tensor([], dtype=torch.int64))) == []


@pytest.mark.parametrize("row", [1, 20, 256])
def test_losses_and_gradients_are_those_of_padded_batches(backbone, read, row, monkeypatch):
    monkeypatch.setattr(losses, "ROW", row)
    prefix, tokens = read
    found, expected = (
        read_by(backbone, prefix, tokens=tokens, length=LENGTH) for read_by in (packed_losses, padded_losses)
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert (found[torch.arange(7) >= LENGTH[:, None]] == 0).all()
    weight = torch.linspace(1, 2, 35).view(5, 7)
    one, other = (torch.autograd.grad((losses * weight).sum(), prefix)[0] for losses in (found, expected))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_an_utterance_sees_neither_its_neighbours_nor_what_comes_later(backbone, read):
    prefix, tokens = read
    changed = tokens.clone()
    changed[2, 3] = 201 - changed[2, 3]
    with torch.no_grad():
        one, two = (packed_losses(backbone, prefix, tokens=given, length=LENGTH) for given in (tokens, changed))
    differs = (one - two).abs() > 1e-6
    assert differs[2, 3:].all() and not differs[2, :3].any()
    assert not differs[[0, 1, 3, 4]].any()


def test_nothing_to_read_is_nothing(backbone):
    none = torch.zeros(0, 3, dtype=torch.int64)
    for read_by in (packed_losses, padded_losses):
        assert read_by(backbone, torch.zeros(0, 1, 16), tokens=none, length=none[:, 0]).shape == (0, 3)


class Leaking(nn.Module):
    """Accepts a mask and positions but ignores both."""

    config = SimpleNamespace(model_type="none")

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding.from_pretrained(torch.eye(8))

    def get_input_embeddings(self):
        return self.words

    def forward(self, inputs_embeds, attention_mask=None, position_ids=None, use_cache=False):
        return SimpleNamespace(logits=inputs_embeds.cumsum(dim=1))


class Plain(Leaking):
    def forward(self, inputs_embeds, attention_mask=None):
        return SimpleNamespace(logits=inputs_embeds)


class Refusing(Leaking):
    def forward(self, inputs_embeds, attention_mask=None, position_ids=None, use_cache=False):
        if attention_mask.dim() != 2:
            raise ValueError("attention_mask: two dimensions are expected")
        return SimpleNamespace(logits=inputs_embeds)


@pytest.mark.parametrize("kind", [Leaking, Plain, Refusing])
def test_a_model_that_cannot_keep_them_apart_is_read_padded(kind):
    assert not can_pack(kind())
    start = torch.zeros(8)
    assert PrefixLanguageModel(kind(), start=start, contexts=1, tokens=1, kind="shared").losses is padded_losses


@pytest.mark.parametrize(
    ("config", "packs"),
    [
        (MistralConfig(num_key_value_heads=2, sliding_window=4, **SMALL), False),  # our mask would lift the window
        (MistralConfig(num_key_value_heads=2, sliding_window=None, **SMALL), True),
        (RobertaConfig(is_decoder=True, pad_token_id=1, **SMALL), False),  # counts positions from the padding on
        (BloomConfig(vocab_size=50, hidden_size=16, n_layer=2, n_head=4), False),  # takes distances from the mask
    ],
)  # fmt: skip
def test_what_an_architecture_makes_of_it_is_tried(config, packs):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    assert can_pack(model) == packs
    prefix, tokens, length = torch.randn(2, 1, 16), torch.randint(2, 50, (2, 9)), torch.tensor([9, 6])
    read_by = PrefixLanguageModel(model, start=torch.zeros(16), contexts=1, tokens=1, kind="shared").losses
    with torch.no_grad():
        found, expected = (way(model, prefix, tokens=tokens, length=length) for way in (read_by, padded_losses))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_an_adapter_changes_nothing_about_it(backbone):
    adapted = with_lora(backbone, rank=2)
    assert can_pack(adapted)


def test_one_that_can_is_read_in_rows(backbone):
    assert can_pack(backbone)
    model = PrefixLanguageModel(backbone, start=torch.zeros(16), contexts=1, tokens=1, kind="shared", frozen=False)
    assert model.losses is packed_losses
