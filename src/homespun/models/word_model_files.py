"""Word-level models in folders: a vocabulary, weights, and how they were made.

FOLDER/config.json         sizes, and how it was made
FOLDER/words.txt           the vocabulary, one word per line
FOLDER/model.safetensors   the weights
FOLDER/README.md           the card
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from homespun.core.errors import InputError
from homespun.models.vocabulary import Vocabulary
from homespun.system.disk import draft_folder

UNTRAINED = "untrained"
UNTRAINED_SMALL = "untrained-small"  # for tests
COMMON_WORDS = Path(__file__).parent / "common_words.txt"
FILES = ("config.json", "words.txt", "model.safetensors")
LARGEST_FILE = 2_000_000_000  # bytes


@dataclass(frozen=True)
class WordModelFiles:
    """What is in a folder."""

    config: Mapping[str, Any]
    vocabulary: Vocabulary
    weights: Mapping[str, Tensor]


def absolute_folder(name: str) -> str:
    """The absolute path of a folder, so that a run can be opened from any working directory; other names unchanged."""
    return str(Path(name).resolve()) if name not in ("", UNTRAINED, UNTRAINED_SMALL) and os.path.isdir(name) else name


@cache
def common_vocabulary(size: int | None = None) -> Vocabulary:
    """The most frequent English words, for models without training."""
    return Vocabulary(Vocabulary.from_lines(COMMON_WORDS.read_text(encoding="utf-8")).known[:size])


def read_word_model(name: str, *, kind: str, command: str) -> WordModelFiles:
    """Read a folder. `kind` and the command that makes such a model are for error messages."""
    folder, where = Path(name), f"{kind} {name!r}"
    absent = [one for one in FILES if not (folder / one).is_file()]
    if absent:
        remedy = f"Make one with `{command} --data FILE --folder FOLDER`, and name FOLDER/model."
        if (folder / "model" / FILES[0]).is_file():
            remedy = f"Did you mean {str(folder / 'model')!r}?"
        raise InputError(
            f"{where}: {'no such folder' if not folder.is_dir() else 'no ' + ', '.join(absent) + ' in it'}. {remedy}"
        )
    if sum((folder / one).stat().st_size for one in FILES) > LARGEST_FILE:
        raise InputError(f"{where}: its files are larger than {LARGEST_FILE // 10**9} GB")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        vocabulary = Vocabulary.from_lines((folder / "words.txt").read_text(encoding="utf-8"))
        weights = load_file(folder / "model.safetensors")
    except (ValueError, SafetensorError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: cannot be read ({error}). Make it again, or restore it from a copy.") from None
    if not isinstance(config, dict):
        raise InputError(f"{where}: config.json is not that of a {kind}")
    return WordModelFiles(config, vocabulary, weights)


def write_word_model(
    folder: Path, files: WordModelFiles, *, card: str, more: Mapping[str, Mapping[str, Tensor]] | None = None
) -> None:
    """Write the folder; all of its files or none. An existing model there is replaced. `more` has further files of
    tensors."""
    weights = {name: one.contiguous() for name, one in files.weights.items()}
    with draft_folder(folder, mode=0o777) as draft:
        (draft / "config.json").write_text(json.dumps(files.config, indent=2) + "\n", encoding="utf-8")
        (draft / "words.txt").write_text(files.vocabulary.to_lines(), encoding="utf-8")
        for name, tensors in {"model.safetensors": weights, **(more or {})}.items():
            save_file(dict(tensors), draft / name)
        (draft / "README.md").write_text(card, encoding="utf-8")
        for path in draft.iterdir():
            path.chmod(0o644)  # safetensors makes files readable by the owner only
        if folder.exists():
            shutil.rmtree(folder)


def require_fit(network: nn.Module, weights: Mapping[str, Tensor], *, where: str) -> None:
    """Raise unless these are the weights of such a network."""
    expected = {name: tuple(one.shape) for name, one in network.named_parameters()}
    found = {name: tuple(one.shape) for name, one in weights.items()}
    if found != expected:
        wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise InputError(f"{where}: model.safetensors does not fit config.json and words.txt: {', '.join(wrong[:4])}")


def fingerprint(vocabulary: Vocabulary, weights: Mapping[str, Tensor], *, more: str = "") -> str:
    """A hash of the words and the weights, and of what else makes a difference."""
    found = hashlib.sha256((vocabulary.to_lines() + more).encode())
    for name in sorted(weights):
        found.update(name.encode())
        found.update(weights[name].contiguous().numpy().tobytes())
    return found.hexdigest()
