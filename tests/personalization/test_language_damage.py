"""Errors for broken, foreign or exchanged base models, and for contexts without training data."""

import json

import pytest
import torch
from language_models import write_gpt2, write_llama
from safetensors.torch import load_file, save_file
from spoken_corpus import train_small

from homespun import reopen
from homespun.core.errors import DataError, InputError, RunError
from homespun.experiments.results import read_results
from homespun.models.pretrained import load_pretrained


def test_broken_weights(tmp_path):
    base = write_gpt2(tmp_path / "base")
    whole = (base / "model.safetensors").read_bytes()
    for name, content in {"cut off": whole[: len(whole) // 2], "no header": b"\0" * 100, "empty": b""}.items():
        (base / "model.safetensors").write_bytes(content)
        with pytest.raises(InputError, match=r"base model .*base cannot be read as a causal language model"):
            load_pretrained(str(base))
        assert name


def test_the_weights_of_another_model(tmp_path):
    base, other = write_gpt2(tmp_path / "base"), write_llama(tmp_path / "other")
    (base / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(
        InputError, match=r"\d+ weights required by its config.json are missing from its files, for example"
    ):
        load_pretrained(str(base))
    wide = write_gpt2(tmp_path / "wide", width=32)
    (base / "model.safetensors").write_bytes((wide / "model.safetensors").read_bytes())
    with pytest.raises(InputError, match="cannot be read as a causal language model"):
        load_pretrained(str(base))


def test_one_weight_is_missing(tmp_path):
    base = write_gpt2(tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    del weights["transformer.ln_f.weight"]
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"1 weights required by .*'transformer.ln_f.weight'"):
        load_pretrained(str(base))


def test_the_tokenizer_of_another_model(tmp_path):
    base = write_gpt2(tmp_path / "base")
    config = json.loads((base / "config.json").read_text())
    weights = load_file(base / "model.safetensors")
    weights["transformer.wte.weight"] = weights["transformer.wte.weight"][:200].clone()
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    (base / "config.json").write_text(json.dumps({**config, "vocab_size": 200}))
    with pytest.raises(InputError, match=r"its tokenizer has \d+ tokens, the model only 200"):
        load_pretrained(str(base))


@pytest.mark.parametrize("width", [16, 32])
def test_another_model_under_the_same_name(tmp_path, width):
    base = write_gpt2(tmp_path / "base")
    train_small(tmp_path, base=base, rounds=1).close()
    write_gpt2(tmp_path / "base", width=width)
    weights = load_file(base / "model.safetensors")
    weights["transformer.ln_f.bias"] = weights["transformer.ln_f.bias"] + torch.tensor(0.5)
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    load_pretrained.cache_clear()
    with pytest.raises(RunError, match=r"the base model '.*base' is not the one that this run was trained with"):
        reopen(tmp_path / "run")


def test_a_context_that_only_withheld_users_have(tmp_path):
    rows = [
        f"{user},{'sung' if user == 3 else 'spoken'},We must go on to {row}" for user in range(5) for row in range(6)
    ]
    corpus = tmp_path / "people.csv"
    corpus.write_text("user,context,text\n" + "\n".join(rows) + "\n")
    base, refused, trained = write_gpt2(tmp_path / "base"), 0, 0
    for fold in range(5):
        (tmp_path / str(fold)).mkdir()
        try:
            train_small(tmp_path / str(fold), base=base, corpus=corpus, rounds=1, withheld=0.2, fold=fold).close()
            trained += 1
        except DataError as error:
            refused += 1
            assert "context 'sung' is in no user's training part, but 1 user would be tested in it." in str(error)
            assert not (tmp_path / str(fold) / "run").exists()
    assert (refused, trained) == (1, 4)  # the fold with the user who sings


def test_a_context_that_only_a_participants_test_part_has(tmp_path):
    """One utterance is sung; with some seeds it is for training, with others it is not."""
    rows = [
        f"{user},{'sung' if (user, row) == (0, 0) else 'spoken'},We go on to {row}"
        for user in (0, 1)
        for row in range(5)
    ]
    corpus = tmp_path / "people.csv"
    corpus.write_text("user,context,text\n" + "\n".join(rows) + "\n")
    base, outcomes = write_gpt2(tmp_path / "base"), set()
    for seed in range(6):
        (tmp_path / str(seed)).mkdir()
        try:
            with train_small(tmp_path / str(seed), base=base, corpus=corpus, rounds=1, seed=seed) as run:
                assert "We go on to 0" in run.clients.split(run.federation, run.federation.users.index("0")).train.texts
            outcomes.add("trained")
        except DataError as error:
            assert "context 'sung' is in no user's training part" in str(error)
            outcomes.add("refused")
    assert outcomes == {"trained", "refused"}


def test_incomplete_settings_and_results(tmp_path):
    train_small(tmp_path, rounds=1).close()
    folder = tmp_path / "run"
    (folder / "results.json").write_text('{"schema": 1}')
    with pytest.raises(RunError, match="not the results of a run"):
        read_results(folder)
    (folder / "settings.json").write_text('{"schema": 1}')
    with pytest.raises(RunError, match="has no data, data_fingerprint, method, method_settings, run"):
        reopen(folder)
