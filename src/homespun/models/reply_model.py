"""Reply models in folders: a sequence-to-sequence model with its vocabulary and its card (word_model_files.py).

FOLDER/pairs.safetensors has held-out pairs of its public data, on which a reranker can be tuned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import torch
from pydantic import AfterValidator, PositiveInt
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from homespun.core.errors import InputError, SettingsError
from homespun.core.settings import Settings, parse
from homespun.models.seq2seq import Persona, Seq2Seq
from homespun.models.vocabulary import Vocabulary
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

PAIRS = "pairs.safetensors"
PersonaLayers: TypeAlias = Literal["all", "first", "last"]  # decoder layers that read the persona
Direction: TypeAlias = Literal["replies", "prompts"]  # what the model writes: replies to prompts, or the reverse
ReplyModelName: TypeAlias = Annotated[str, AfterValidator(absolute_folder)]


class Sizes(Settings):
    """The sizes of a reply model."""

    word_dim: PositiveInt = 100
    """Size of a word's embedding."""
    cells: PositiveInt = 100
    """Cells of each LSTM layer."""
    layers: PositiveInt = 4
    """LSTM layers of the encoder, and of the decoder."""
    length: PositiveInt = 20
    """Words of a question or a reply that are read; the rest is cut."""


@dataclass(frozen=True, repr=False)
class ReplyModel:
    """A trained or untrained model that replies to a text."""

    name: str  # `untrained` or a folder
    vocabulary: Vocabulary
    sizes: Sizes
    direction: Direction
    fingerprint: str
    weights: Mapping[str, Tensor] = field(default_factory=dict)  # empty: untrained
    facts: Mapping[str, Any] = field(default_factory=dict)  # how it was made

    def __repr__(self) -> str:
        return f"<ReplyModel {self.name}: {len(self.vocabulary):,} words, writes {self.direction}>"

    def build(
        self,
        *,
        dropout: float = 0.0,
        persona: Persona = "none",
        persona_dim: int = 0,
        persona_scale: float = 1.0,
        readers: Collection[int] | None = None,
        profile_dim: int = 0,
        profile_values: int = 0,
        in_question: bool = False,
        population: int = 0,
        new_columns: float = 0.1,
    ) -> Seq2Seq:
        """A network that starts from these weights. Matrices that are larger than the stored ones keep the stored
        columns; the new columns keep their random start, times `new_columns`."""
        sizes = self.sizes
        network = Seq2Seq(
            vocabulary=len(self.vocabulary),
            word_dim=sizes.word_dim,
            cells=sizes.cells,
            layers=sizes.layers,
            dropout=dropout,
            persona=persona,
            persona_dim=persona_dim,
            persona_scale=persona_scale,
            readers=readers,
            profile_dim=profile_dim,
            profile_values=profile_values,
            in_question=in_question,
            population=population,
        )
        with torch.no_grad():
            for name, value in network.named_parameters():
                stored = self.weights.get(name)
                if stored is not None:
                    columns = stored.shape[-1]
                    value[..., :columns].copy_(stored)
                    value[..., columns:].mul_(new_columns)
        return network


def layers_named(which: PersonaLayers, layers: int) -> range:
    """The numbers of these decoder layers."""
    return {"all": range(layers), "first": range(1), "last": range(layers - 1, layers)}[which]


@cache
def load_reply_model(name: str) -> ReplyModel:
    """Load a reply model from a folder, or the untrained one, and cache it for the rest of the process."""
    if name == UNTRAINED:
        return untrained(common_vocabulary(), Sizes())
    if name == UNTRAINED_SMALL:
        small = untrained(common_vocabulary(200), Sizes(word_dim=8, cells=8, layers=2, length=8))
        return replace(small, name=UNTRAINED_SMALL)
    where = f"reply model {name!r}"
    files = read_word_model(name, kind="reply model", command="homespun pretrain seq2seq")
    config, vocabulary, weights = files.config, files.vocabulary, files.weights
    if config.get("direction") not in ("replies", "prompts"):
        raise InputError(f"{where}: config.json is not that of a reply model")
    sizes = parse(Sizes, config.get("sizes", {}), where=f"{where}: config.json")
    found = _fingerprint(vocabulary, sizes, weights)
    model = ReplyModel(name, vocabulary, sizes, config["direction"], found, weights, config.get("facts", {}))
    require_fit(untrained(vocabulary, sizes).build(), weights, where=where)
    return model


def untrained(vocabulary: Vocabulary, sizes: Sizes, *, direction: Direction = "replies") -> ReplyModel:
    """A model without weights, to start training from."""
    return ReplyModel(UNTRAINED, vocabulary, sizes, direction, _fingerprint(vocabulary, sizes, {}))


def load_public_pairs(model: ReplyModel) -> list[tuple[list[int], list[int]]]:
    """The held-out pairs beside a model: word numbers of prompts and whole replies."""
    try:
        found = load_file(Path(model.name) / PAIRS)
        columns = [found[name].tolist() for name in ("question", "question_length", "reply", "length")]
    except (OSError, SafetensorError, KeyError) as error:
        raise InputError(
            f"{model.name}: no held-out pairs in it ({PAIRS}: {error}). Pre-train the model again."
        ) from None
    return [(question[:asked], reply[: length - 1]) for question, asked, reply, length in zip(*columns, strict=True)]


def load_base(name: str) -> ReplyModel:
    """The pre-trained model that a method starts from."""
    if not name:
        raise SettingsError(
            "base_model: name the folder of a pre-trained reply model, with --base FOLDER or --set base_model=FOLDER. "
            "`homespun pretrain seq2seq --data FILE` makes one; `untrained` starts from random weights."
        )
    base = load_reply_model(name)
    if base.direction != "replies":
        raise SettingsError(f"base_model: {base.name} is an inverse model: it writes prompts, not replies.")
    return base


def load_inverse(name: str, base: ReplyModel) -> ReplyModel:
    """The inverse model in a folder. Raises unless it writes prompts with the vocabulary of `base`."""
    inverse = load_reply_model(name)
    if inverse.direction != "prompts":
        raise InputError(
            f"{name}: this model writes replies, not prompts. Make an inverse one with "
            "`homespun pretrain seq2seq --inverse`."
        )
    if inverse.vocabulary != base.vocabulary:
        raise InputError(
            f"{name}: its vocabulary of {len(inverse.vocabulary):,} numbers is not that of the base model "
            f"({len(base.vocabulary):,}). Pre-train both on the same data with the same settings."
        )
    return inverse


def save_reply_model(folder: Path, model: ReplyModel, *, card: str, pairs: Mapping[str, Tensor] | None = None) -> None:
    """Write the folder; all of its files or none. An existing model there is replaced."""
    config = {"direction": model.direction, "sizes": model.sizes.model_dump(), "facts": dict(model.facts)}
    files = WordModelFiles(config, model.vocabulary, model.weights)
    write_word_model(folder, files, card=card, more={} if pairs is None else {PAIRS: pairs})


def _fingerprint(vocabulary: Vocabulary, sizes: Sizes, weights: Mapping[str, Tensor]) -> str:
    """The length is the only size that the weights do not show; the default keeps old fingerprints."""
    more = "" if sizes.length == Sizes().length else f"length {sizes.length}"
    return fingerprint(vocabulary, weights, more=more)
