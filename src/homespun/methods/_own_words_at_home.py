"""Personalization of OOV Expansion: what its settings allow, what a user's device tries, where each choice starts, and
what the device keeps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from homespun.core.errors import SettingsError, raise_faults
from homespun.core.method import Batch
from homespun.core.personalize import Home
from homespun.core.tree import Tree
from homespun.methods._own_texts import counted_in, with_lexicon, with_memories
from homespun.models.next_word import UNSCORED
from homespun.models.word_adapter import new_adapter

if TYPE_CHECKING:
    from homespun.methods.oov_expansion import Settings

TRAINED_WITHOUT = ("unknown", "memory")  # `own_scores` that have no own words in training
LEXICON = ("own.lexicon", "own.counts")


class Choice(NamedTuple):
    """Settings of personalization that a user's device tries."""

    lr: float
    scale: float | None = 0.0  # of a new adapter; None: the federated one
    hidden: tuple[int, ...] = ()


def require_consistent(settings: Settings, *, subwords: bool) -> None:
    """Raise if some settings exclude each other, or a base model of sub-words."""
    adapts, remembers = settings.own_words != "none" and settings.own_scores == "adapter", settings.memory != "none"
    at_once = settings.own_words != "none" and settings.own_start == "unknown"
    faults = []
    if settings.own_scores == "memory" and (settings.own_words == "none" or not remembers):
        faults.append("own_scores = memory needs a memory and own words")
    if settings.personalize_trains == "adapter" and not adapts:
        faults.append("personalize_trains = adapter needs own words with an adapter")
    if settings.adapter_prior == "federated" and not adapts:
        faults.append("adapter_prior = federated needs own words with an adapter")
    if settings.personalize_trains == "nothing" and not (at_once and settings.own_scores in ("adapter", "unknown")):
        faults.append("personalize_trains = nothing needs own words with own_start = unknown")
    if settings.personalize_trains == "nothing" and remembers:
        faults.append("personalize_trains = nothing excludes a memory")
    if subwords and (settings.own_words != "none" or remembers):
        faults.append("a base model of sub-words has no unknown words: own_words and memory must be none")
    if settings.own_scores == "unknown" and not at_once:
        faults.append("own_scores = unknown needs own words and own_start = unknown")
    if settings.adapter_prior == "federated" and settings.own_start == "spelling":
        faults.append("adapter_prior = federated needs own_start = unknown")
    if adapts and settings.adapter_prior == "none" and not (settings.adapter_scales and settings.adapters):
        faults.append("adapter_scales and adapters need a value each without adapter_prior = federated")
    if faults:
        raise_faults(SettingsError, "oov_expansion", faults)


def choices(settings: Settings) -> list[Choice]:
    if settings.personalize_trains == "nothing":
        return []
    if settings.own_words == "none" or settings.own_scores != "adapter":
        return [Choice(lr) for lr in settings.personalize_lrs]
    # An adapter that starts at zero stays there but for its last bias: its hidden layers change nothing.
    forms: list[tuple[float | None, tuple[int, ...]]] = [
        (scale, one) for scale in settings.adapter_scales for one in settings.adapters[: None if scale else 1]
    ]
    if settings.adapter_prior == "federated":
        forms.insert(0, (None, settings.prior_adapter))
    return [Choice(lr, *form) for lr, form in product(settings.personalize_lrs, forms)]


def starts(home: Home, fit: Batch, choices: Sequence[Choice], *, settings: Settings) -> list[Tree]:
    """The shared model; with own words, also a lexicon of the training examples and a new adapter, or the federated."""
    if settings.own_words == "none":
        return [home.parameters] * len(choices)
    if settings.own_scores in TRAINED_WITHOUT:
        return [{**home.parameters, **{name: home.parameters[name][:0] for name in LEXICON}}] * len(choices)
    cells = home.parameters["output.weight"].shape[1]
    known = knowing(home, fit, home.parameters, settings=settings)
    seed = home.generator.initial_seed()  # choices differ in the scale of their draws only

    def adapter(choice: Choice) -> Tensor:
        if choice.scale is None:
            return torch.zeros(0)
        generator = torch.Generator().manual_seed(seed)
        return new_adapter(choice.hidden, cells=cells, scale=choice.scale, generator=generator)

    hidden = {choice.hidden: torch.tensor(choice.hidden, dtype=torch.int64) for choice in choices}
    return [{**known, "own.hidden": hidden[choice.hidden], "own.adapter": adapter(choice)} for choice in choices]


def knowing(home: Home, texts: Batch, parameters: Tree, *, settings: Settings) -> Tree:
    """The parameters with the own words of these texts or, if all are known, of all texts of the user."""
    limits = {"at_most": settings.most_own_words, "at_least": settings.own_words_typed}
    if settings.own_words == "training":
        return with_lexicon(parameters, [texts["spelling"]], **limits)
    every = [home.data[name] for name in ("spelling", "elsewhere") if name in home.data]
    return counted_in(with_lexicon(parameters, every, **limits), texts["spelling"])


def refine(home: Home, parameters: Tree, texts: Batch, *, settings: Settings) -> list[Tree]:
    """The parameters with the own words of these texts and, with a memory, every weight and scale of it."""
    if settings.own_scores in TRAINED_WITHOUT and settings.own_words != "none":
        parameters = {**parameters, **{name: home.parameters[name] for name in LEXICON}}
    if settings.own_words != "none":
        parameters = knowing(home, texts, parameters, settings=settings)
    if settings.own_scores == "memory":
        parameters = {**parameters, "own.hidden": torch.tensor(UNSCORED)}
    return with_memories(parameters, texts, kind=settings.memory)


def without_search(home: Home, *, settings: Settings) -> Tree:
    """The shared model and, if they need no training, the own words of all texts."""
    if settings.own_words == "none" or settings.own_start == "spelling" or settings.own_scores == "memory":
        return home.parameters
    return knowing(home, home.data, home.parameters, settings=settings)
