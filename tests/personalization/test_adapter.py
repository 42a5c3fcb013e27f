"""An exported adapter, loaded by PEFT itself, gives the numbers of the prefix it was made from."""

import json

import pytest
import torch
from language_models import write_gpt2, write_llama
from spoken_corpus import train_small

from homespun.core.errors import InputError, RunError
from homespun.personalization.adapter import export_adapter

peft = pytest.importorskip("peft")


@pytest.mark.parametrize(("write", "tokens"), [(write_gpt2, 1), (write_gpt2, 3), (write_llama, 2)])
def test_peft_reads_it(tmp_path, write, tokens):
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    base = write(tmp_path / "base")
    with train_small(tmp_path, base=base, rounds=1, virtual_tokens=tokens) as run:
        voice = export_adapter(run, tmp_path / "out", user="kennedy", context="written")
        with pytest.raises(InputError, match="there is such a file or folder already"):
            export_adapter(run, tmp_path / "out", user="kennedy", context="written")
    assert sorted(path.name for path in tmp_path.joinpath("out").iterdir()) == [
        "README.md", "adapter_config.json", "adapter_model.safetensors",
    ]  # fmt: skip
    assert torch.equal(load_file(tmp_path / "out" / "adapter_model.safetensors")["prompt_embeddings"], voice.prefix)
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(base) and config["num_virtual_tokens"] == tokens
    card = (tmp_path / "out" / "README.md").read_text()
    assert "# John F. Kennedy, written" in card and voice.pretrained.fingerprint in card
    assert voice.own and "made from private parameters" in card

    loaded = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "out").eval()
    ids = torch.tensor([voice.pretrained.tokenizer("We must go on")["input_ids"]])
    with torch.no_grad():
        theirs = loaded(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        words = voice.backbone.get_input_embeddings()(ids)
        ours = voice.backbone(inputs_embeds=torch.cat((voice.prefix[None], words), dim=1)).logits
    assert torch.allclose(theirs, ours, atol=1e-6)


def test_a_changed_language_model_does_not_fit_into_an_adapter(tmp_path):
    with (
        train_small(tmp_path, rounds=1, layers="*.1.*") as run,
        pytest.raises(RunError, match="cannot hold"),
    ):
        export_adapter(run, tmp_path / "out", user="kennedy", context="written")
    assert not (tmp_path / "out").exists()


def test_somebody_of_whom_nothing_is_kept_is_somebody_new(tmp_path):
    with train_small(tmp_path, rounds=1) as run:
        run.vault.forget("John F. Kennedy")
        voice = export_adapter(run, tmp_path / "out", user="kennedy", context="written")
        new = export_adapter(run, tmp_path / "new", context="written")
    assert not voice.own and not new.own and torch.equal(voice.prefix, new.prefix)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "where somebody new begins" in card and "private parameters" not in card
