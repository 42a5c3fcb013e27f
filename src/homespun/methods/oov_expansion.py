"""OOV Expansion: Learning Personalized Vocabulary On Device (Wang, Shenoy, Chuang, Nguyen, 2023).

A character-aware LSTM suggests the next word. Its closed vocabulary V has no words that only some users use. On the
device of a user, up to n of their own words get rows of their own in the output layer, computed from their spelling
(section 2.4):

    scores = [W h + b, A(E) h]        E = CharCNN(own words), A = OOV adapter, a residual MLP

and one softmax is over V and the user's lexicon. Here A starts from the row of the unknown word, not from E, and a bias
has the share of each own word in the unknown ones (`own_start`). The stages are

1. central pre-training (`homespun pretrain nextword`),
2. federated training of the model, without own words, which are [UNK] there,
3. personalization: the user's device trains the whole model and a new adapter with several learning rates lr, standard
   deviations sigma of the adapter's start and hidden layers H, and keeps what does best on held-out examples.

The lexicon, the adapter and the copy of the model stay at home.

With `adapter_prior = "federated"`, which the paper does not have, the rounds train an adapter as well: a client's own
words are in the softmax as they are at home, and only deltas are uploaded. A new user's first own words are then scored
by their spelling without training.

| paper | here |
|---|---|
| CharCNN | `bytes.*`, `convolution.*`, FEDERATED |
| LSTM encoder, decoder | `lstm.*`, `output.*`, FEDERATED |
| OOV words of a user | `own.lexicon`, PRIVATE; how often each was typed, `own.counts`; all of them, `own.unknowns` |
| OOV adapter, and H | `own.adapter`, `own.start`, `own.hidden`, PRIVATE; the federated one is `adapter`, FEDERATED |
| OOV-as-UNK, OOV Expansion | `own_words = "none"`, and `"all"` or `"training"` |
| OOV-oracle | a base model with a larger vocabulary, and `own_words = "none"` |
| (no closed vocabulary) | a base model of sub-words, and `own_words = "none"` |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from homespun.core import settings as core_settings
from homespun.core.method import (
    Artefact,
    Batch,
    LocalTraining,
    Loss,
    Method,
    ModelSpec,
    Phase,
    Predict,
    Sgd,
    Task,
    Window,
)
from homespun.core.roles import Role, Rules
from homespun.core.server import FedAdam, FedAvg, ServerName, ServerRule
from homespun.core.settings import Paper
from homespun.core.tree import Tree
from homespun.core.words import words
from homespun.data.federation import Examples
from homespun.evaluation.next_words import NextWordScoring, emr3_and_loss
from homespun.methods._choices_at_home import ChoicesAtHome
from homespun.methods._own_texts import (
    counts_of_round,
    fits,
    lexicon_of_round,
    loss_with_own_words,
    no_own_texts,
    own_places,
    own_word_notices,
    places_in_texts,
)
from homespun.methods._own_words_at_home import choices, refine, require_consistent, starts, without_search
from homespun.models.next_subword import encode_subwords
from homespun.models.next_word import FROM_SPELLING, FROM_UNKNOWN
from homespun.models.next_word_model import NextWordModelName, load_base
from homespun.models.word_adapter import adapter_size
from homespun.models.word_batches import encode_texts, spell_elsewhere
from homespun.models.word_memory import Memory

Hidden = tuple[PositiveInt, ...]


class Settings(core_settings.Settings):
    personalization_only = (
        *(
            "own_words",
            "own_start",
            "own_scores",
            "own_words_typed",
            "most_own_words",
            "memory",
            "adapter_scales",
            "adapters",
        ),
        *("personalize_lrs", "personalize_trains", "personalize_epochs", "survivors", "validation_share"),
    )

    base_model: NextWordModelName = ""
    """Folder of the pre-trained next-word model (`homespun pretrain nextword`), or `untrained`. One of sub-words needs
    `own_words = "none"`."""
    own_words: Annotated[Literal["training", "all", "none"], Paper("all")] = "training"
    """Own words of a user. training: those of the texts that personalization trains on; all: also those of the texts
    that it is tested on, which a device cannot know; none: the paper's OOV-as-UNK."""
    own_start: Annotated[Literal["unknown", "spelling"], Paper("spelling")] = "unknown"
    """Where the score of an own word starts. unknown: at its share of the unknown word's probability, by how often it
    was typed; spelling: at the inner product with the embedding of its spelling."""
    own_scores: Literal["adapter", "identity", "unknown", "memory"] = "adapter"
    """How an own word is scored. adapter: from its start, by its spelling, through a trained adapter; identity: as it
    starts, without an adapter. With the others the model is trained without own words, and then they are scored as they
    start (unknown) or by the memory alone (memory)."""
    memory: Memory = "none"
    """A control without training, interpolated with the model. cache: frequencies of the user's words, also after one
    or two words; neighbours: what followed the nearest outputs of the LSTM in the user's texts (kNN-Per)."""
    most_own_words: Annotated[PositiveInt, Paper(1000)] = 1000
    """Maximum number of own words of a user: the most frequent ones."""
    own_words_typed: PositiveInt = 1
    """How often a user must have typed a word until it is an own word."""
    adapter_prior: Literal["none", "federated"] = "none"
    """federated: rounds train an adapter on the own words of all clients. It scores a new user's own words by their
    spelling before any training at home, and the search at home also starts from it."""
    prior_adapter: Hidden = (256, 512, 256)
    """Hidden layers of that adapter."""
    prior_words: PositiveInt = 200
    """Maximum number of a client's own words that train it in a round: the most frequent ones."""
    prior_lr: NonNegativeFloat = 0.1
    """Its learning rate in local training."""
    length: PositiveInt = 50
    """Words of a text that are read; the rest is cut."""

    # Local training
    local_epochs: Annotated[PositiveInt, Paper(1)] = 1
    """Passes over a client's training examples in a round."""
    batch: Annotated[PositiveInt, Paper(8)] = 8
    """Examples in a local batch."""
    lr: Annotated[NonNegativeFloat, Paper(0.84)] = 0.84
    """Learning rate of local training."""
    clip_norm: PositiveFloat | None = None
    """Maximum L2 norm of a step's gradient. Not set: no limit."""

    # The server
    server: Annotated[ServerName, Paper("fedadam")] = "fedadam"
    """How the server applies the averaged update."""
    server_lr: Annotated[PositiveFloat, Paper(0.003)] = 0.003
    """Learning rate of the server."""
    server_weight_decay: Annotated[NonNegativeFloat, Paper(1e-5)] = 1e-5
    """Weight decay of fedadam, subtracted from the averaged update."""

    # Personalization
    personalize_lrs: Annotated[tuple[NonNegativeFloat, ...], Paper((1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0))] = (0.03, 0.1)
    """Learning rates that a user's device tries."""
    adapter_scales: Annotated[tuple[NonNegativeFloat, ...], Paper((0.0, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0))] = (0.05,)
    """Standard deviations of the adapter's start that it tries, the paper's sigma. None: the federated adapter only."""
    adapters: Annotated[tuple[Hidden, ...], Paper(((960,), (128, 256, 128), (256, 512, 256)))] = ((256, 512, 256),)
    """Hidden layers of the adapter that it tries, the paper's H."""
    personalize_trains: Literal["all", "adapter", "nothing"] = "all"
    """What is trained at home: the whole model and the adapter, the adapter alone, or nothing: the user's own words are
    scored as they start, or by the federated adapter."""
    personalize_epochs: Annotated[PositiveInt, Paper(10)] = 10
    """Maximum number of passes over a user's examples with each of these settings."""
    survivors: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of these settings that train on after each pass: the best ones. 0.5: successive halving."""
    validation_share: Annotated[float, Field(gt=0, lt=1)] = 1 / 9
    """Share of a user's training examples on which the device chooses."""


# How the paper runs it: 96 users in every round, 6 epochs
PAPER_RUN = {"epochs": 6, "cohort": 96}
RUN = {"epochs": 3, "cohort": 96, "final_personalization": True, "fractions": (0.85, 0.05, 0.1)}

# Sizes at which the contract is checked in seconds
SMALL = {
    "base_model": "untrained-small",
    "length": 12,
    "lr": 0.1,
    "server_weight_decay": 0.0,
    "personalize_lrs": (0.1,),
    "adapter_scales": (0.1,),
    "adapters": ((4,),),
    "personalize_epochs": 2,
}


# Roles

SHARED = ("bytes.*", "convolution.*", "lstm.*", "output.*")


def roles(shared: Sequence[str], *, own: bool) -> Rules:
    return [*([("own.*", Role.PRIVATE)] if own else []), *((glob, Role.FEDERATED) for glob in shared)]


# Loss and local training


def loss(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
    """Mean loss per word of each text, which is weighted in its batch by its number of words."""
    return predict(parameters, batch)[..., 0].sum(dim=-1) / batch["length"]


# The server


def server_rule(settings: Settings) -> ServerRule:
    """FedAvg, or Adam with the paper's moments on the averaged update."""
    if settings.server == "fedavg":
        return FedAvg(settings.server_lr)
    decay = settings.server_weight_decay
    return FedAdam(settings.server_lr, beta2=0.999, tau=1e-8, weight_decay=decay, bias_correction=True)


# The method


def method(settings: Settings, task: Task) -> Method:
    base = load_base(settings.base_model)
    require_consistent(settings, subwords=base.subwords is not None)
    expands, remembers = settings.own_words != "none", settings.memory != "none"
    prior = settings.prior_adapter if settings.adapter_prior == "federated" else ()
    shared = (*SHARED, "adapter") if prior else SHARED
    start = FROM_UNKNOWN if settings.own_start == "unknown" else FROM_SPELLING
    nothing = no_own_texts(lexicon=expands, memory=remembers, prior=prior, start=start)

    def encode(examples: Examples) -> Batch:
        texts = encode_texts(examples.texts, base.vocabulary, length=settings.length, spelled=expands)
        if base.subwords is not None:
            texts |= encode_subwords(examples.texts, base.subwords, length=settings.length)
        return {**texts, **places_in_texts(texts, at_most=settings.prior_words)} if prior else texts

    def encode_part(part: Examples, whole: Examples) -> Batch:
        elsewhere = spell_elsewhere(part.texts, whole.texts, base.vocabulary, length=settings.length)
        return {**encode(part), "elsewhere": elsewhere}

    at_home = [*shared, "own.adapter"] if expands else shared
    trained_at_home = [one for one in at_home if settings.personalize_trains == "all" or one.endswith("adapter")]
    in_rounds = {**dict.fromkeys(SHARED, Sgd(settings.lr)), **({"adapter": Sgd(settings.prior_lr)} if prior else {})}

    def phase(trains: Mapping[str, Sgd], *, epochs: int, loss: Loss | None = None) -> Phase:
        return Phase(trains, batch=settings.batch, epochs=epochs, clip_norm=settings.clip_norm, loss=loss)

    round_loss = loss_with_own_words(loss, hidden=prior) if prior else None
    return Method(
        name="oov_expansion",
        version=1,
        settings=settings,
        task=task,
        model=ModelSpec(
            build=lambda: base.build(lexicon=expands, memory=settings.memory, prior=prior),
            roles=roles(shared, own=expands or remembers),
            encode=encode,
            encode_part=encode_part if settings.own_words == "all" else None,
            new_private=lambda _, __: dict(nothing),
            private_varies=expands or remembers,
            private_fits=lambda private: fits(private, like=nothing, cells=base.sizes.cells),
            derived={
                **({"own": own_places} if expands else {}),
                **({"lexicon": lexicon_of_round, "counts": counts_of_round} if prior else {}),
            },
            head=("output.*",),
            window=Window("length", settings.length, "words", sizes=lambda texts: [len(words(t)) for t in texts]),
        ),
        local=LocalTraining(
            loss,
            phases=(phase(in_rounds, epochs=settings.local_epochs, loss=round_loss),),
            example_weight="length",
        ),
        personalize=ChoicesAtHome(
            choices(settings),
            starts=partial(starts, settings=settings),
            phase=lambda choice: phase(dict.fromkeys(trained_at_home, Sgd(choice.lr)), epochs=1),
            score=emr3_and_loss,
            epochs=settings.personalize_epochs,
            validation_share=settings.validation_share,
            survivors=settings.survivors,
            adds_at_most=max(
                (adapter_size(one.hidden, cells=base.sizes.cells) for one in choices(settings)), default=0
            ),
            refine=partial(refine, settings=settings),
            untrained=partial(without_search, settings=settings),
            describe=own_word_notices,
        ),
        scoring=NextWordScoring(),
        server=server_rule(settings),
        artefacts=(Artefact("base_model", settings.base_model, base.fingerprint, kind="next-word model"),),
    )
