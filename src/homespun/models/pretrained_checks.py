"""Checks the files of a base model before anything is built from them.

The files are untrusted. `config.json` can ask for any size. Only safetensors hold plain numbers; other weight formats
are pickled and can run code when they are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from homespun.core.errors import InputError, raise_faults

# Largest allowed integers in a config.json, by name; the first matching glob applies. None: not a size, not limited.
BOUNDS: Mapping[str, int | None] = {
    **dict.fromkeys(("*theta*", "*base*", "*freq*", "*seed*"), None),
    **dict.fromkeys(("*layer", "*layers"), 512),
    **dict.fromkeys(("*position*", "*length*", "*ctx*", "*seq*", "*window*"), 2**24),
    **dict.fromkeys(("*vocab*", "*token*", "*size*", "*dim*", "*embd*", "*inner*", "d_*"), 2**20),
    "*": 2**16,
}
NUMBERS = 20_000_000_000  # limit on parameters and buffers together: 80 GB in float32
NUMBERS_PER_BYTE = 4  # limit per byte of the weight files: a model with less than two bits per number is incomplete

CONVERT = (
    'If you trust it, convert it once: python -c "from transformers import AutoModelForCausalLM as M, AutoTokenizer; '
    "folder, new = {source!r}, 'converted'; M.from_pretrained(folder).save_pretrained(new); "
    'AutoTokenizer.from_pretrained(folder).save_pretrained(new)"'
)


def require_sizes(config: Mapping[str, Any], *, where: str) -> None:
    """Raise unless every size in a config.json is within bounds. Names all that are not."""
    faults = [
        f"{name} is {value:,}, at most {most:,}"
        for name, value in _integers(config)
        if (most := _most(name)) is not None and abs(value) > most
    ]
    if faults:
        raise_faults(InputError, f"{where}: its config.json", faults)


def require_plausible_size(config: Any, *, where: str, folder: Path | None) -> None:
    """Raise if the whole model would be too large, or far larger than its files. Allocates nothing."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    parameters = sum(tensor.numel() for tensor in model.parameters())
    numbers = parameters + sum(tensor.numel() for tensor in model.buffers())
    if numbers > NUMBERS:
        raise InputError(f"{where}: its config.json asks for {numbers:,} numbers, at most {NUMBERS:,}.")
    if folder is None:  # file sizes are unknown before the download
        return
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if size and parameters > NUMBERS_PER_BYTE * size:
        raise InputError(
            f"{where}: {folder} cannot be read as a causal language model: its config.json asks for {parameters:,} "
            f"numbers, but its files have only {size:,} bytes. Copy the model's files again, all from one place."
        )


def require_safetensors(folder: Path, config: Mapping[str, Any], *, where: str) -> None:
    """Raise if the weights of a folder would have to be unpickled, or are in another folder."""
    if (folder / "adapter_config.json").exists():
        raise InputError(
            f"{where}: it has an adapter_config.json: it is an adapter, without the weights of its model. Merge it "
            "into the model (merge_and_unload in PEFT) and save that."
        )
    named = str(config.get("transformers_weights") or "model.safetensors")
    index = folder / (named if named.endswith(".index.json") else f"{named}.index.json")
    files = [named.removesuffix(".index.json"), *_shards(index)]
    pickled = [file for file in files if not file.endswith(".safetensors")]
    if not pickled and not (folder / named).exists() and not index.exists():
        pickled = sorted(file.name for glob in ("*.bin", "*.pt", "*.pth", "*.ckpt") for file in folder.glob(glob))
    if pickled:
        raise InputError(
            f"{where}: {pickled[0]} is pickled, which can run code when it is read: homespun reads only safetensors. "
            + CONVERT.format(source=str(folder))
        )


def _shards(index: Path) -> list[str]:
    """The weight files that an index lists."""
    try:
        return sorted({str(file) for file in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # transformers reports what is wrong with it
        return []


def _most(name: str) -> int | None:
    return next(most for glob, most in BOUNDS.items() if fnmatchcase(name.lower(), glob))


def _integers(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Every integer of a JSON value with its key; in a list, with the key of the list."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _integers(item, str(key))
    elif isinstance(value, list):
        for item in value:
            yield from _integers(item, name)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield name, value
