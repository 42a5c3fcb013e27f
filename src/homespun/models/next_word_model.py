"""Next-word models in folders: a character-aware LSTM with its vocabulary and its card (word_model_files.py)."""

from __future__ import annotations

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
from homespun.models.next_word import NextWord
from homespun.models.vocabulary import PADDING, Vocabulary
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

    def __repr__(self) -> str:
        return f"<NextWordModel {self.name}: {len(self.vocabulary):,} words>"

    def build(self, *, lexicon: bool = False, memory: Memory = "none", prior: Sequence[int] = ()) -> NextWord:
        """A network that starts from these weights. `prior` are the hidden layers of a shared adapter."""
        network = NextWord(self.vocabulary, lexicon=lexicon, memory=memory, prior=prior, **self.sizes.model_dump())
        with torch.no_grad():
            for name, value in network.named_parameters():
                if name in self.weights:
                    value.copy_(self.weights[name])
            if prior:  # its last bias: own words start as improbable as padding, which never follows
                network.adapter[-self.sizes.cells :] = network.output.weight[PADDING]
        return network


def untrained(vocabulary: Vocabulary, sizes: NextWordSizes) -> NextWordModel:
    """A model without weights, to start training from."""
    return NextWordModel(UNTRAINED, vocabulary, sizes, fingerprint(vocabulary, {}))


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
    require_fit(untrained(files.vocabulary, sizes).build(), files.weights, where=where)
    found = fingerprint(files.vocabulary, files.weights)
    return NextWordModel(name, files.vocabulary, sizes, found, files.weights, files.config.get("facts", {}))


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
    write_word_model(folder, WordModelFiles(config, model.vocabulary, model.weights), card=card)
