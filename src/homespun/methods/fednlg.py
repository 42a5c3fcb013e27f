"""FedNLG: Federated Natural Language Generation for Personalized Dialogue System (Lu et al., 2021).

A sequence-to-sequence model reads a question Q and writes a reply R as speaker i would. Each decoder step reads the
speaker's persona v_i (section "Persona-embedded Model"):

    [f, i, o, j]_t = [sigma, sigma, sigma, tanh](W [h_{t-1}, x_t, v_i])                          (Eq. 2)

Stage 1 pre-trains the model without personas on public dialogues (`homespun pretrain seq2seq`). Stage 2, here, goes on
with one client per speaker. The server averages word embeddings and LSTMs, weighted by examples c_i,

    w <- w + sum_i c_i d_i / sum_i c_i                                                           (Eq. 10)

and personas stay on the clients: v_i <- v_i + z_i d_i, with z_i = 1 or, as Eq. 11 reads, c_i / sum_j c_j.

If the corpus has profiles (age, gender, ...), a persona has two parts, as in the introduction: v_i = [profile part,
behaviour part]. The behaviour part is learned from the speaker's dialogues and is private. The profile part is the sum
of the embeddings of the profile's values, which speakers share and Eq. 10 averages.

| paper | here |
|---|---|
| v_i, persona embedding; with profiles its behaviour part | `persona.embedding`, PRIVATE |
| profile part of v_i | rows of `profile.table`, FEDERATED |
| w_f, word embeddings and neural model | `words.*`, `encoder.*`, `decoder.*`, `output.*`, FEDERATED |
| Q_i = {v_i, q_1, ...} | `persona_in_question` |
| E, epochs between two aggregations | `local_epochs` |
| FedAvg, FedProx, FedDrop | the defaults; `mu`; `keep_share` and the run's `cohort_decay` |
| SEQ2SEQ + FL | `persona = "none"`; SEQ2SEQ and + Persona without FL are the method `central_dialogue` |

Deviations and readings, numbered as in docs/methods/fednlg.md, which has the reasons and those of the experiments:
1. W has 4K rows and K + K + 128 columns, not 3K: the persona has 128 numbers and a cell state 100.
2. The persona is read by every decoder layer (`persona_layers`); which layers read it is not in the paper.
3. The optimizer is not in the paper: SGD for shared parameters and Adam for personas, fresh in every round.
4. Columns of W for the persona keep their random start, times a factor, and personas start small.
5. Initialization is Xavier's with a larger gain for inputs of LSTMs, open forget gates and normal word embeddings.
6. Dropout is on the input of each layer and of the output layer (Zaremba et al., 2014).
16. A round trains the persona first and then the shared parameters; the paper trains both at once (`schedule`).
17. The profile part is the sum of a learned embedding for each value. The paper does not say how it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from homespun.core import settings as core_settings
from homespun.core.messages import Broadcast
from homespun.core.method import (
    Adam,
    Artefact,
    Batch,
    LocalTraining,
    Method,
    ModelSpec,
    Optimizer,
    Phase,
    Predict,
    Sgd,
    Task,
    Window,
)
from homespun.core.personalize import GradientSteps
from homespun.core.roles import Role, Rules
from homespun.core.server import ServerName, rule_from_settings
from homespun.core.settings import Paper
from homespun.core.tree import Tree
from homespun.core.words import words
from homespun.data.federation import Examples
from homespun.evaluation.language import ReplyScoring
from homespun.methods._largest_changes import LargestChanges
from homespun.models.reply_batches import encode_texts, profile_rows
from homespun.models.reply_model import PersonaLayers, ReplyModel, ReplyModelName, layers_named, load_base

Share = Annotated[float, Field(gt=0, le=1)]


class Settings(core_settings.Settings):
    added_later = ("profile_dim", "persona_steps")
    evaluation_only = ("evaluate_replies", "evaluate_sampled", "evaluate_beam", "evaluate_inverse", "evaluate_strength")

    base_model: ReplyModelName = ""
    """Folder of the pre-trained reply model (`homespun pretrain seq2seq`), or `untrained`."""
    persona: Literal["private", "table", "none"] = "private"
    """Where personas are stored: on the clients, in a table on the server, or none exist (the paper's SEQ2SEQ + FL)."""
    persona_dim: Annotated[PositiveInt, Paper(128)] = 128
    """Size of a persona; of a persona with a profile, of its behaviour part."""
    profile_dim: NonNegativeInt = 32
    """Size of the profile part of a persona, if the corpus has profiles (`--profile-column`). 0: without."""
    persona_scale: NonNegativeFloat = 0.1
    """Standard deviation of a new persona."""
    persona_layers: PersonaLayers = "all"
    """Decoder layers that read the persona."""
    persona_in_question: bool = False
    """Whether the encoder reads the persona before the question as well (the paper's Q_i)."""
    new_columns: NonNegativeFloat = 0.3
    """Factor on the random start of matrix columns that the pre-trained model does not have."""
    dropout: Annotated[float, Field(ge=0, lt=1), Paper(0.2)] = 0.2
    """Share of the inputs of each layer that dropout sets to zero."""

    # Local training
    local_epochs: PositiveInt = 1
    """Passes over a client's training examples in a round, the paper's E."""
    batch: Annotated[PositiveInt, Paper(1024)] = 64
    """Examples in a local batch."""
    optimizer: Literal["adam", "sgd"] = "sgd"
    """Optimizer of local training."""
    lr: Annotated[NonNegativeFloat, Paper(0.01)] = 3.0
    """Learning rate of local training."""
    schedule: Annotated[Literal["joint", "alternating"], Paper("joint")] = "alternating"
    """joint: the persona and the shared parameters together. alternating: first the persona, then the shared
    parameters."""
    persona_optimizer: Literal["adam", "sgd"] = "adam"
    """Optimizer of the persona."""
    persona_lr: NonNegativeFloat = 5e-3
    """Learning rate of the persona."""
    persona_steps: PositiveInt | None = None
    """Local steps of the persona in a round, with schedule = alternating. Not set: `local_epochs`."""
    clip_norm: Annotated[PositiveFloat, Paper(5)] = 5.0
    """Maximum L2 norm of a step's gradient. It stabilizes training and gives no privacy."""
    mu: NonNegativeFloat = 0.0
    """FedProx's mu, on the shared parameters."""
    keep_share: Share = 1.0
    """Share of each parameter's changes that a client sends, the largest ones (FedDrop's selective masking)."""

    # The server
    server: Annotated[ServerName, Paper("fedavg")] = "fedavg"
    """How the server applies the averaged update."""
    server_lr: PositiveFloat | None = None
    """Learning rate of the server. Not set: 1 for fedavg, 0.01 for fedadam."""
    server_weight_decay: NonNegativeFloat = 0.0
    """Weight decay of fedadam, subtracted from the averaged update. The published FedAdam has none."""
    server_bias_correction: bool = False
    """Whether fedadam corrects its moments for their start at zero. The published FedAdam does not."""
    private_update: Literal["all", "share"] = "all"
    """How much of its delta a persona keeps: all of it, or the client's share of the round's examples (equation 11)."""

    # New speakers
    personalize_epochs: PositiveInt = 20
    """Passes over a new speaker's examples in personalization."""
    personalize_lr: NonNegativeFloat | None = None
    """Learning rate for a new speaker's persona. Not set: the same as `persona_lr`."""

    # Evaluation
    evaluate_replies: NonNegativeInt = 200
    """Test prompts whose generated replies are scored after training, about as many of each speaker. 0: none."""
    evaluate_sampled: NonNegativeInt = 0
    """Test prompts whose sampled replies are scored: sampling is faster than a beam. 0: as many."""
    evaluate_beam: Annotated[PositiveInt, Paper(200)] = 20
    """Beam of the search for these replies."""
    evaluate_inverse: ReplyModelName = ""
    """Folder of an inverse model (`homespun pretrain seq2seq --inverse`). Set: a reranker is tuned with it after
    training, and its replies are scored as well."""
    evaluate_strength: NonNegativeFloat = 1.0
    """Not 1: sampled replies with personas of this strength (`persona_strength` of a reply) are scored as well."""


# How the paper runs it: all speakers in every round, 90 epochs.
PAPER_RUN = {"epochs": 90, "cohort": "all"}
RUN = {"epochs": 10, "cohort": "all", "split_by": "conversation"}

# Sizes at which the contract is checked in seconds
SMALL = {"base_model": "untrained-small", "persona_dim": 6, "batch": 8, "lr": 0.1, "personalize_epochs": 2}


# The model


def encode(examples: Examples, base: ReplyModel, *, profile: tuple[int, ...] = ()) -> Batch:
    """Prompts and replies as numbers. `profile`: how many values each column of the profile has."""
    batch = encode_texts(examples.prompts or (), examples.texts, base)
    if examples.authors is not None:
        batch["author"] = torch.as_tensor(examples.authors, dtype=torch.int64)
    if profile:
        batch["profile"] = profile_rows(examples.profiles, profile, examples=len(examples))
    return batch


# Roles

SHARED = ("words.*", "encoder.*", "decoder.*", "output.*", "to_word.*", "profile.*")


def roles(persona: str) -> Rules:
    own = {"private": [("persona.embedding", Role.PRIVATE)], "table": [("persona.table", Role.KEYED)], "none": []}
    return [*own[persona], *((glob, Role.FEDERATED) for glob in SHARED)]


# Loss and local training


def loss(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
    """Mean loss per word of each reply, which is weighted in its batch by its number of words."""
    return predict(parameters, batch).sum(dim=-1) / batch["length"].clamp(min=1)


OPTIMIZERS: dict[str, Callable[[float], Optimizer]] = {"adam": Adam, "sgd": Sgd}


def _local_phases(settings: Settings, rules: Rules) -> tuple[Phase, ...]:
    """All parameters together, or first the persona and then the shared parameters. The shared parameters see the
    same batches and the same dropout with and without personas."""
    persona, others = OPTIMIZERS[settings.persona_optimizer], OPTIMIZERS[settings.optimizer]
    shared = {glob: others(settings.lr) for glob, role in rules if role == Role.FEDERATED}
    own = {glob: persona(settings.persona_lr) for glob, _ in rules if glob not in shared}
    alternating = own and settings.schedule == "alternating"
    phase = Phase(
        shared if alternating else own | shared,
        batch=settings.batch,
        epochs=settings.local_epochs,
        mu=settings.mu,
        clip_norm=settings.clip_norm,
        stream="shared",
    )
    if not alternating:
        return (phase,)
    steps = settings.persona_steps
    return replace(phase, trains=own, epochs=None if steps else phase.epochs, steps=steps, stream=""), phase


def _personalization_phase(settings: Settings) -> Phase:
    """The persona of a new speaker alone."""
    lr = settings.persona_lr if settings.personalize_lr is None else settings.personalize_lr
    trains = {"persona.embedding": OPTIMIZERS[settings.persona_optimizer](lr)}
    return Phase(trains, batch=settings.batch, epochs=settings.personalize_epochs, clip_norm=settings.clip_norm)


# The method


def method(settings: Settings, task: Task) -> Method:
    base, rules = load_base(settings.base_model), _roles_in_use(settings, task)
    private = settings.persona == "private"
    profile = _profile_sizes(settings, task)

    def new_private(generator: torch.Generator, _: Broadcast) -> dict[str, Tensor]:
        if not private:
            return {}
        return {"persona.embedding": settings.persona_scale * torch.randn(settings.persona_dim, generator=generator)}

    return Method(
        name="fednlg",
        version=2,
        settings=settings,
        task=task,
        model=ModelSpec(
            build=lambda: base.build(
                dropout=settings.dropout,
                persona=settings.persona,
                persona_dim=settings.persona_dim,
                persona_scale=settings.persona_scale,
                readers=layers_named(settings.persona_layers, base.sizes.layers),
                profile_dim=settings.profile_dim,
                profile_values=sum(profile),
                in_question=settings.persona_in_question,
                population=task.population,
                new_columns=settings.new_columns,
            ),
            roles=rules,
            encode=lambda examples: encode(examples, base, profile=profile),
            new_private=new_private,
            keys={"persona.table": "author"} if settings.persona == "table" else {},
            head=("output.*",),
            reads="replies",
            window=Window(
                "sizes.length", base.sizes.length, "words", sizes=lambda texts: [len(words(t)) for t in texts]
            ),
        ),
        local=LocalTraining(
            loss,
            phases=_local_phases(settings, rules),
            example_weight="length",
            private_update=settings.private_update,
            stochastic=settings.dropout > 0,
        ),
        personalize=GradientSteps((_personalization_phase(settings),) if private else ()),
        scoring=ReplyScoring(
            **{name.removeprefix("evaluate_"): getattr(settings, name) for name in Settings.evaluation_only}
        ),
        server=rule_from_settings(settings, row_denominator="contributors"),
        transforms=() if settings.keep_share == 1 else (LargestChanges(settings.keep_share),),
        artefacts=(Artefact("base_model", settings.base_model, base.fingerprint, kind="reply model"),),
    )


def _profile_sizes(settings: Settings, task: Task) -> tuple[int, ...]:
    """The number of values of each profile column that the personas have a part for."""
    return task.profile if settings.persona != "none" and settings.profile_dim else ()


def _roles_in_use(settings: Settings, task: Task) -> Rules:
    in_use = {
        "to_word.*": settings.persona_in_question and settings.persona != "none",
        "profile.*": bool(_profile_sizes(settings, task)),
    }
    return [rule for rule in roles(settings.persona) if in_use.get(rule[0], True)]
