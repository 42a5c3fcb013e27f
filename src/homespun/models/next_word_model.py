"""Next-word models in folders: a character-aware LSTM with its vocabulary and its card (word_model_files.py).

A model of sub-words predicts pieces of words. Its vocabulary says which words one of whole words would not have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import torch
from pydantic import AfterValidator, PositiveInt
from torch import Tensor

from homespun.core.errors import InputError, SettingsError
from homespun.core.settings import Paper, Settings, parse
from homespun.models.next_subword import NextSubword
from homespun.models.next_word import NextWord
from homespun.models.subwords import Subwords
from homespun.models.vocabulary import Vocabulary
from homespun.models.word_memory import Memory
from homespun.models.word_model_files import (
    UNTRAINED,
    UNTRAINED_SMALL,
    WordModelFiles,
    absolute_folder,
    common_vocabulary,
    fingerprint,
    read_word_model,
    require_fit,
    write_word_model,
)

KIND = "next-word model"
NextWordModelName: TypeAlias = Annotated[str, AfterValidator(absolute_folder)]


class NextWordSizes(Settings):
    """The sizes of a next-word model."""

    byte_dim: Annotated[PositiveInt, Paper(100)] = 100
    """Size of a byte's embedding."""
    cells: Annotated[PositiveInt, Paper(200)] = 200
    """Channels of the convolution, and cells of each LSTM layer."""
    layers: Annotated[PositiveInt, Paper(2)] = 2
    """LSTM layers."""


@dataclass(frozen=True, repr=False)
class NextWordModel:
    """A trained or untrained model of the next word."""

    name: str  # `untrained` or a folder
    vocabulary: Vocabulary
    sizes: NextWordSizes
    fingerprint: str
    weights: Mapping[str, Tensor] = field(default_factory=dict)  # empty: untrained
    facts: Mapping[str, Any] = field(default_factory=dict)  # how it was made
    subwords: Subwords | None = None  # what it predicts, if not words

    def __repr__(self) -> str:
        pieces = "" if self.subwords is None else f", {len(self.subwords.pieces):,} pieces"
        return f"<NextWordModel {self.name}: {len(self.vocabulary):,} words{pieces}>"

    def build(self, *, lexicon: bool = False, memory: Memory = "none", prior: Sequence[int] = ()) -> NextWord:
        """A network that starts from these weights. `prior` are the hidden layers of a shared adapter. A network of
        sub-words has neither own words nor a memory."""
        sizes = self.sizes.model_dump()
        if self.subwords is not None:
            network: NextWord = NextSubword(self.subwords, **sizes)
        else:
            network = NextWord(self.vocabulary, lexicon=lexicon, memory=memory, prior=prior, **sizes)
        with torch.no_grad():
            for name, value in network.named_parameters():
                if name in self.weights:
                    value.copy_(self.weights[name])
        return network


def untrained(vocabulary: Vocabulary, sizes: NextWordSizes, subwords: Subwords | None = None) -> NextWordModel:
    """A model without weights, to start training from."""
    return NextWordModel(UNTRAINED, vocabulary, sizes, _fingerprint(vocabulary, subwords, {}), subwords=subwords)


def _fingerprint(vocabulary: Vocabulary, subwords: Subwords | None, weights: Mapping[str, Tensor]) -> str:
    return fingerprint(vocabulary, weights, more="" if subwords is None else json.dumps(subwords.to_config()))


@cache
def load_next_word_model(name: str) -> NextWordModel:
    """Load a model from a folder, or the untrained one, and cache it for the rest of the process."""
    if name == UNTRAINED:
        return untrained(common_vocabulary(), NextWordSizes())
    if name == UNTRAINED_SMALL:
        small = untrained(common_vocabulary(200), NextWordSizes(byte_dim=6, cells=8, layers=2))
        return replace(small, name=UNTRAINED_SMALL)
    where = f"{KIND} {name!r}"
    files = read_word_model(name, kind=KIND, command="homespun pretrain nextword")
    if files.config.get("kind") != KIND:
        raise InputError(f"{where}: config.json is not that of a {KIND}")
    sizes = parse(NextWordSizes, files.config.get("sizes", {}), where=f"{where}: config.json")
    subwords = Subwords.from_config(files.config["subwords"]) if "subwords" in files.config else None
    require_fit(untrained(files.vocabulary, sizes, subwords).build(), files.weights, where=where)
    found = _fingerprint(files.vocabulary, subwords, files.weights)
    return NextWordModel(name, files.vocabulary, sizes, found, files.weights, files.config.get("facts", {}), subwords)


def load_base(name: str) -> NextWordModel:
    """The pre-trained model that a method starts from."""
    if not name:
        raise SettingsError(
            "base_model: name the folder of a pre-trained next-word model, with --base FOLDER or --set "
            "base_model=FOLDER. `homespun pretrain nextword --data FILE` makes one; `untrained` starts from random "
            "weights."
        )
    return load_next_word_model(name)


def save_next_word_model(folder: Path, model: NextWordModel, *, card: str) -> None:
    """Write the folder; all of its files or none. An existing model there is replaced."""
    config = {"kind": KIND, "sizes": model.sizes.model_dump(), "facts": dict(model.facts)}
    if model.subwords is not None:
        config["subwords"] = model.subwords.to_config()
    write_word_model(folder, WordModelFiles(config, model.vocabulary, model.weights), card=card)
