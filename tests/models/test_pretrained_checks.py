"""Files of a base model are untrusted: none is run or unpickled, and implausible sizes are rejected."""

import json

import pytest
import torch
from language_models import write_gpt2, write_llama
from safetensors.torch import load_file

from homespun.core.errors import InputError, UntrustedError
from homespun.models import pretrained
from homespun.models.pretrained import load_pretrained
from homespun.system.trust import named_by_user, vouched_for


def changed(folder, file="config.json", **values):
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**content, **values}))


@pytest.fixture
def nothing_is_built(monkeypatch):
    """Fails if the model or its tokenizer is loaded."""
    import transformers

    def built(*_, **__):
        raise AssertionError("built")

    for kind in (transformers.AutoModelForCausalLM, transformers.AutoTokenizer):
        monkeypatch.setattr(kind, "from_pretrained", built)


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"n_layer": 200_000}, "n_layer is 200,000, at most 512"),
        ({"n_layer": -200_000}, "n_layer is -200,000, at most 512"),
        ({"vocab_size": 10**9}, "vocab_size is 1,000,000,000, at most 1,048,576"),
        ({"n_positions": 10**9}, "n_positions is 1,000,000,000, at most 16,777,216"),
        ({"n_embd": 10**8}, "n_embd is 100,000,000, at most 1,048,576"),
        ({"n_head": 10**30}, "n_head is .*, at most 65,536"),
        ({"num_labels": 10**7}, "num_labels is 10,000,000, at most 65,536"),
        ({"text_config": {"layers": [1, 10**6]}}, "layers is 1,000,000, at most 512"),
    ],
)
def test_an_absurd_size_is_refused_from_the_config_alone(values, fault, tmp_path, nothing_is_built):
    base = write_gpt2(tmp_path / "base")
    changed(base, **values)
    with pytest.raises(InputError, match=rf"base model '.*base': its config.json: {fault}"):
        load_pretrained(str(base))


def test_all_absurd_sizes_are_named_at_once(tmp_path, nothing_is_built):
    base = write_gpt2(tmp_path / "base")
    changed(base, n_layer=10**5, vocab_size=10**9)
    with pytest.raises(InputError, match=r"2 faults:\n  - n_layer is .*\n  - vocab_size is"):
        load_pretrained(str(base))


def test_sizes_that_are_absurd_together(tmp_path, nothing_is_built):
    base = write_gpt2(tmp_path / "base")
    changed(base, n_layer=512, n_embd=65536)
    with pytest.raises(InputError, match=r"asks for 26,388,739,260,416 numbers, at most 20,000,000,000"):
        load_pretrained(str(base))


def test_sizes_that_the_weights_cannot_fill(tmp_path, nothing_is_built):
    base = write_gpt2(tmp_path / "base")
    size = (base / "model.safetensors").stat().st_size
    changed(base, n_layer=512, n_embd=1024)
    with pytest.raises(
        InputError, match=rf"asks for 6,4\d\d,\d{{3}},\d{{3}} numbers, but its files have only {size:,} bytes"
    ):
        load_pretrained(str(base))


def test_large_numbers_that_are_no_sizes_are_accepted(tmp_path):
    base = write_llama(tmp_path / "base")
    config = json.loads((base / "config.json").read_text())
    changed(base, rope_parameters={**config["rope_parameters"], "rope_theta": 10**11}, max_position_embeddings=10**7)
    assert load_pretrained(str(base)).positions == 10**7


CODE = "raise SystemExit('the code of a base model ran')\n"


CLASSES = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model", "AutoTokenizer": ["own.T", "own.T"]}


@pytest.fixture
def with_code(tmp_path, monkeypatch):
    """A model with its own code, and a terminal on which transformers could ask about it."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a prompt"))
    base = write_gpt2(tmp_path / "base")
    (base / "own.py").write_text(CODE)
    return base


def test_a_model_that_needs_its_own_code_is_refused_without_a_question(with_code):
    changed(with_code, auto_map=CLASSES, model_type="own")
    with pytest.raises(InputError, match=r"base model '.*base'.* needs its own code, which homespun does not run"):
        load_pretrained(str(with_code))


def test_code_that_a_model_does_not_need_is_ignored(with_code):
    changed(with_code, auto_map=CLASSES)
    changed(with_code, "tokenizer_config.json", auto_map=CLASSES, tokenizer_class="OwnTokenizer")
    assert load_pretrained(str(with_code)).width == 16


def test_pickled_weights_are_refused_with_the_way_to_convert_them(tmp_path):
    base = write_gpt2(tmp_path / "base")
    torch.save(load_file(base / "model.safetensors"), base / "pytorch_model.bin")
    (base / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"pytorch_model.bin is pickled") as caught:
        load_pretrained(str(base))
    _, command, _ = str(caught.value).split('"')
    exec(command, {})
    assert load_pretrained(str(tmp_path / "converted")).width == 16


def test_no_other_file_brings_pickled_weights_in(tmp_path, nothing_is_built):
    base = write_gpt2(tmp_path / "base")
    (base / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere"}')
    with pytest.raises(InputError, match=r"adapter_config.json: it is an adapter"):
        load_pretrained(str(base))
    (base / "adapter_config.json").unlink()
    changed(base, transformers_weights="adapter_model.bin")
    with pytest.raises(InputError, match=r"adapter_model.bin is pickled"):
        load_pretrained(str(base))
    changed(base, transformers_weights="model.safetensors")
    (base / "model.safetensors").rename(base / "model-1.safetensors")
    index = {"weight_map": {"transformer.wte.weight": "model-1.safetensors", "transformer.wpe.weight": "part.bin"}}
    (base / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"part.bin is pickled"):
        load_pretrained(str(base))


def test_a_file_is_no_base_model(tmp_path, nothing_is_built):
    (tmp_path / "weights.bin").write_bytes(b"weights")
    with pytest.raises(InputError, match=r"weights.bin': a file. Name its folder"):
        load_pretrained(str(tmp_path / "weights.bin"))


def test_only_the_user_has_a_model_fetched(monkeypatch):
    """A model that a run folder names comes from the local hub cache or not at all."""
    asked = []

    def get_config_dict(name, **options):
        asked.append(options["local_files_only"])
        raise OSError("no such model here")

    monkeypatch.setattr(pretrained, "_config_of", get_config_dict)
    with pytest.raises(UntrustedError, match=r"'org/model' is not on this machine.*--trust org/model"):
        load_pretrained("org/model")
    with (
        vouched_for("org/model"),
        pytest.raises(InputError, match="could not be loaded from the Hugging Face hub"),
    ):
        load_pretrained("org/model")
    with (
        named_by_user(),
        pytest.raises(InputError, match="could not be loaded from the Hugging Face hub"),
    ):
        load_pretrained("org/model")
    assert asked == [True, False, False]
