"""Reply models in folders: a sequence-to-sequence model with its vocabulary and its card.

FOLDER/config.json         sizes, direction and how it was made
FOLDER/words.txt           the vocabulary, one word per line
FOLDER/model.safetensors   the weights of a `Seq2Seq` without a persona
FOLDER/pairs.safetensors   held-out pairs of its public data, on which a reranker can be tuned
FOLDER/README.md           the card
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import torch
from pydantic import AfterValidator, PositiveInt
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from homespun.core.errors import InputError, SettingsError
from homespun.core.settings import Settings, parse
from homespun.models.seq2seq import Persona, Seq2Seq
from homespun.models.vocabulary import Vocabulary
from homespun.system.disk import draft_folder

UNTRAINED = "untrained"
UNTRAINED_SMALL = "untrained-small"  # for tests
COMMON_WORDS = Path(__file__).parent / "common_words.txt"
PAIRS = "pairs.safetensors"
FILES = ("config.json", "words.txt", "model.safetensors")
LARGEST_FILE = 2_000_000_000  # bytes
PersonaLayers: TypeAlias = Literal["all", "first", "last"]  # decoder layers that read the persona
Direction: TypeAlias = Literal["replies", "prompts"]  # what the model writes: replies to prompts, or the reverse


def _absolute_folder(name: str) -> str:
    """The absolute path of a folder, so that a run can be opened from any working directory; other names unchanged."""
    return str(Path(name).resolve()) if name not in ("", UNTRAINED, UNTRAINED_SMALL) and os.path.isdir(name) else name


ReplyModelName: TypeAlias = Annotated[str, AfterValidator(_absolute_folder)]


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
    if name in (UNTRAINED, UNTRAINED_SMALL):
        common = Vocabulary.from_lines(COMMON_WORDS.read_text(encoding="utf-8"))
        return untrained(common, Sizes()) if name == UNTRAINED else _small_untrained(common)
    folder, where = Path(name), f"reply model {name!r}"
    absent = [one for one in FILES if not (folder / one).is_file()]
    if absent:
        remedy = "Make one with `homespun pretrain seq2seq --data FILE --folder FOLDER`, and name FOLDER/model."
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
    if not isinstance(config, dict) or config.get("direction") not in ("replies", "prompts"):
        raise InputError(f"{where}: config.json is not that of a reply model")
    sizes = parse(Sizes, config.get("sizes", {}), where=f"{where}: config.json")
    model = ReplyModel(
        name,
        vocabulary,
        sizes,
        config["direction"],
        _fingerprint(vocabulary, sizes, weights),
        weights,
        config.get("facts", {}),
    )
    _require_fit(model, where=where)
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


def _small_untrained(common: Vocabulary) -> ReplyModel:
    made = untrained(Vocabulary(common.known[:200]), Sizes(word_dim=8, cells=8, layers=2, length=8))
    return replace(made, name=UNTRAINED_SMALL)


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
    with draft_folder(folder, mode=0o777) as draft:
        (draft / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (draft / "words.txt").write_text(model.vocabulary.to_lines(), encoding="utf-8")
        save_file({name: one.contiguous() for name, one in model.weights.items()}, draft / "model.safetensors")
        if pairs is not None:
            save_file(dict(pairs), draft / PAIRS)
        (draft / "README.md").write_text(card, encoding="utf-8")
        for path in draft.iterdir():
            path.chmod(0o644)  # safetensors makes files readable by the owner only
        if folder.exists():
            shutil.rmtree(folder)


def _require_fit(model: ReplyModel, *, where: str) -> None:
    expected = {
        name: tuple(one.shape) for name, one in untrained(model.vocabulary, model.sizes).build().named_parameters()
    }
    found = {name: tuple(one.shape) for name, one in model.weights.items()}
    if found != expected:
        wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise InputError(f"{where}: model.safetensors does not fit config.json and words.txt: {', '.join(wrong[:4])}")


def _fingerprint(vocabulary: Vocabulary, sizes: Sizes, weights: Mapping[str, Tensor]) -> str:
    found = hashlib.sha256(vocabulary.to_lines().encode())
    if sizes.length != Sizes().length:  # the only size that the weights do not show; the default keeps old fingerprints
        found.update(f"length {sizes.length}".encode())
    for name in sorted(weights):
        found.update(name.encode())
        found.update(weights[name].contiguous().numpy().tobytes())
    return found.hexdigest()
