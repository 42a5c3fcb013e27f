"""An exported adapter, loaded by PEFT, gives the same numbers as the prefix it was made from."""

import json

import pytest
import torch
from language_models import write_gpt2, write_llama
from spoken_corpus import train_small

from homespun.core.errors import InputError, RunError
from homespun.personalization.adapter import export_adapter

peft = pytest.importorskip("peft")


@pytest.mark.parametrize(("write", "tokens"), [(write_gpt2, 1), (write_gpt2, 3), (write_llama, 2)])
def test_peft_loads_the_adapter(tmp_path, write, tokens):
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    base = write(tmp_path / "base")
    with train_small(tmp_path, base=base, rounds=1, virtual_tokens=tokens) as run:
        model = export_adapter(run, tmp_path / "out", user="kennedy", context="written")
        with pytest.raises(InputError, match="already exists"):
            export_adapter(run, tmp_path / "out", user="kennedy", context="written")
    assert sorted(path.name for path in tmp_path.joinpath("out").iterdir()) == [
        "README.md", "adapter_config.json", "adapter_model.safetensors",
    ]  # fmt: skip
    assert torch.equal(load_file(tmp_path / "out" / "adapter_model.safetensors")["prompt_embeddings"], model.prefix)
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(base) and config["num_virtual_tokens"] == tokens
    card = (tmp_path / "out" / "README.md").read_text()
    assert "# John F. Kennedy, written" in card and model.pretrained.fingerprint in card
    assert model.personalized and "made from private parameters" in card

    loaded = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "out").eval()
    ids = torch.tensor([model.pretrained.tokenizer("We must go on")["input_ids"]])
    with torch.no_grad():
        theirs = loaded(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        words = model.backbone.get_input_embeddings()(ids)
        ours = model.backbone(inputs_embeds=torch.cat((model.prefix[None], words), dim=1)).logits
    assert torch.allclose(theirs, ours, atol=1e-6)


def test_a_run_that_trained_the_language_model_cannot_be_exported(tmp_path):
    with (
        train_small(tmp_path, rounds=1, layers="*.1.*") as run,
        pytest.raises(RunError, match="cannot hold"),
    ):
        export_adapter(run, tmp_path / "out", user="kennedy", context="written")
    assert not (tmp_path / "out").exists()


def test_a_user_without_private_parameters_is_exported_as_a_new_user(tmp_path):
    with train_small(tmp_path, rounds=1) as run:
        run.vault.forget("John F. Kennedy")
        model = export_adapter(run, tmp_path / "out", user="kennedy", context="written")
        new = export_adapter(run, tmp_path / "new", context="written")
    assert not model.personalized and not new.personalized and torch.equal(model.prefix, new.prefix)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "starting point of a new user" in card and "private parameters" not in card
