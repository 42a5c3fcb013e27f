"""The model that ships with homespun."""

import math
from collections import Counter
from pathlib import Path

import pytest
import torch

import homespun
from homespun.pretraining.sources import SOURCES, evaluated_sentences, read_source

FOLDER = Path(homespun.__file__).parent / "models" / "tiny"


@pytest.fixture(scope="module")
def tiny():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(FOLDER)


def test_it_is_small_and_half_precision():
    from safetensors import safe_open

    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 12_000_000
    with safe_open(FOLDER / "model.safetensors", framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float16}  # noqa: SIM118


def test_it_has_the_stated_shape_and_vocabulary(tiny):
    model, tokenizer = tiny
    assert (model.config.n_layer, model.config.n_embd, model.config.n_head) == (4, 256, 8)
    assert model.config.n_positions == 128
    assert len(tokenizer) == model.config.vocab_size == 8192
    assert sum(one.numel() for one in model.parameters()) == 5_289_472
    assert tokenizer.bos_token == tokenizer.eos_token == "<|endoftext|>"
    assert tokenizer.bos_token_id == tokenizer.eos_token_id == model.config.bos_token_id == model.config.eos_token_id
    assert tokenizer.decode(tokenizer("A naïve “test”, 漢字.").input_ids) == "A naïve “test”, 漢字."


def test_it_predicts_messages_better_than_uniform_and_unigram_models(tiny):
    model, tokenizer = tiny
    before = [
        one for source in SOURCES if source.name == "sotu-before-1913" for one in read_source(source, None).paragraphs
    ]
    frequencies = Counter(piece for one in before[::20] for piece in tokenizer(one).input_ids)
    total = sum(frequencies.values()) + len(tokenizer)  # one for each piece: none is impossible
    sentences = evaluated_sentences()[::400]
    loss, unigram, count = 0.0, 0.0, 0
    with torch.no_grad():
        for sentence in sentences:
            ids = [tokenizer.bos_token_id, *tokenizer(sentence).input_ids][:128]
            rows = torch.tensor([ids])
            loss += model(rows, labels=rows).loss.item() * (len(ids) - 1)
            unigram -= sum(math.log((frequencies[piece] + 1) / total) for piece in ids[1:])
            count += len(ids) - 1
    assert count > 2000
    assert math.exp(loss / count) < 0.5 * math.exp(unigram / count) < 0.5 * len(tokenizer)


def test_its_card_has_the_figures():
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    for part in ("homespun pretrain", "sotu-before-1913", "Perplexity on evaluated text", "share 13 words"):
        assert part in card
