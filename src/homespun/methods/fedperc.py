"""FedPerC: personal and context preference embeddings (Silva, Tambwekar and Gombolay, 2022).

A frozen language model reads one learned vector before every utterance: the product of a user's embedding and that of
the context (section 3.1):

    prefix = psi_d * phi_c        psi_d is private to user d, phi_c is shared by all users of context c

Algorithm 1: every client copies phi, takes K steps on batches of its own utterances, uploads the delta of phi and keeps
psi; the server averages.

| paper | here |
|---|---|
| psi_d, personal embedding | `personal.embedding`, PRIVATE |
| phi_c, context embeddings | a row of `context.table`, KEYED |
| theta, the language model | `backbone.*`, FROZEN (or chosen layers, or LoRA, FEDERATED) |
| K, the batch | `local_steps`, `batch` |
| the average embedding that a new user starts from | `prior.embedding`, FEDERATED: learned, not averaged |

Deviations and readings, numbered as in docs/methods/fedperc.md, which has the reasons and those of the experiments:
1. Clients descend the loss, and a delta is local minus global.
2. FedAvg with learning rate 1 is the default, not Adam with learning rate 1.
3. Personal embeddings start at ones and context embeddings at the embedding of BOS.
4. A new user starts from a prior that all clients train; `prior = "average"` is the paper's noisy average.
9. The loss of a batch is the mean over its tokens; FedProx applies to all shared parameters.
10. An utterance needs four tokens: the first three are the prompt.
21. `reads = "replies"` puts the question between prefix and reply, to compare FedPerC with FedNLG as a dialogue method.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from homespun.core import settings as core_settings
from homespun.core.errors import SettingsError
from homespun.core.messages import Broadcast
from homespun.core.method import Adam, Artefact, Batch, LocalTraining, Method, ModelSpec, Phase, Predict, Task
from homespun.core.personalize import GradientSteps
from homespun.core.roles import Role, Rules
from homespun.core.server import RowDenominator, ServerName, ServerRule, equal_weight, rule_from_settings
from homespun.core.settings import Paper
from homespun.core.statistics import Statistics
from homespun.core.tree import Tree
from homespun.data.federation import Examples
from homespun.evaluation.language import ReplyDecoding, SubwordReplyScoring, TokenScoring
from homespun.methods._noisy_average import AverageRule, noisy_average
from homespun.models.prefix_language import Prefix, PrefixLanguageModel
from homespun.models.pretrained import BaseName, Pretrained, load_pretrained, require_layers, with_lora
from homespun.models.token_batches import EVALUATION_DEFAULTS, UtteranceLength, encode, encode_replies, token_window


class Settings(core_settings.Settings):
    added_later = ("start", "server_weight_decay", "server_bias_correction", "reads", "separator")
    evaluation_only = ("evaluate_replies", "evaluate_decode")

    base_model: Annotated[BaseName, Paper("DistilGPT2")] = "tiny"
    """The pre-trained language model: tiny, smollm2, a folder, or a name on the Hugging Face hub."""
    reads: Literal["utterances", "replies"] = "utterances"
    """What follows the prefix: utterances, or questions and replies. Only replies are then learned and scored."""
    separator: str = "\n"
    """Token after a question and after a reply, with reads = replies. Empty: the model's own EOS."""
    prefix: Annotated[Prefix, Paper("personal x context")] = "personal x context"
    """What precedes an utterance. All but personal x context are controls: the context's embedding alone, one embedding
    that all users share, or the personal embedding alone."""
    start: str = ""
    """Token whose embedding the prefix starts as. Empty: the model's own BOS."""
    virtual_tokens: Annotated[PositiveInt, Paper(1)] = 1
    """Embedding vectors in the prefix."""
    length: UtteranceLength = 64
    """Tokens of an utterance that are read; the rest is truncated. With reads = replies, tokens of a question, a reply
    and two separators: a long reply is cut at its end, and the question at its start, to leave room for the reply."""
    lora: NonNegativeInt = 0
    """Rank of a LoRA adapter that all clients train. 0: no adapter."""
    layers: str = ""
    """Glob of the language model's parameters that all clients train. Empty: the model stays frozen."""

    # Local training (appendix B)
    local_steps: Annotated[PositiveInt, Paper(10)] = 10
    """Gradient steps that a client takes in a round, K in algorithm 1."""
    batch: Annotated[PositiveInt, Paper(15)] = 15
    """Utterances in a local batch."""
    lr: Annotated[NonNegativeFloat, Paper(0.001)] = 1e-3
    """Learning rate of local Adam, for the context embedding."""
    model_lr: NonNegativeFloat | None = None
    """Learning rate for `lora` or `layers`. Not set: the same as `lr`."""
    personal_lr: Annotated[NonNegativeFloat | None, Paper(0.001)] = None
    """Learning rate for the personal embedding. Not set: the same as `lr`."""
    mu: Annotated[NonNegativeFloat, Paper(1.0)] = 1.0
    """FedProx's mu, on the shared parameters."""

    # Where new users start
    prior: Annotated[Literal["learned", "average", "none"], Paper("average")] = "learned"
    """Where a new user's embedding starts: at an embedding that all clients train, at the average of all personal
    embeddings (every client then uploads its own, clipped and noised), or where all users started."""
    prior_steps: PositiveInt = 2
    """Gradient steps that a client takes in a round on a learned prior."""
    average_clip: PositiveFloat = 1.0
    """Maximum L2 norm of the step away from the current average that a client uploads, with prior = average."""
    average_noise: NonNegativeFloat = 0.1
    """Standard deviation of the noise on every coordinate of that step."""

    # The server
    server: Annotated[ServerName, Paper("fedadam")] = "fedavg"
    """How the server applies the averaged update."""
    server_lr: Annotated[NonNegativeFloat | None, Paper(1)] = None
    """Learning rate of the server. Not set: 1 for fedavg, 0.01 for fedadam."""
    server_weight_decay: NonNegativeFloat = 0.0
    """Weight decay of fedadam, subtracted from the averaged update. The published FedAdam has none."""
    server_bias_correction: bool = False
    """Whether fedadam corrects its moments for their start at zero. The published FedAdam does not."""
    row_denominator: Annotated[RowDenominator, Paper("cohort")] = "cohort"
    """A context's update is averaged over the whole cohort, or over the clients with examples in that context."""

    # Personalization after training
    personalize_steps: Annotated[PositiveInt, Paper(15)] = 15
    """Gradient steps of a client in personalization, after training."""
    personalize_lr_factor: NonNegativeFloat = 1.0
    """Factor on the learning rates in personalization."""

    # Evaluation with reads = replies
    evaluate_replies: NonNegativeInt = 200
    """Test prompts whose generated replies are scored after training, about as many of each user. 0: none."""
    evaluate_decode: ReplyDecoding = "sample"
    """How these replies are generated: sampled, the likeliest token at each step, or the best of a beam of 20."""


# How the paper runs it (section 4.1, appendix B): all clients in every round, 60/20/20, 55 epochs.
PAPER_RUN = {"epochs": 55, "cohort": "all", "fractions": (0.6, 0.2, 0.2)}
RUN = {**PAPER_RUN, **EVALUATION_DEFAULTS}

# Sizes at which the contract is checked in seconds
SMALL = {"length": 12, "local_steps": 2, "batch": 3, "personalize_steps": 2}


# The model


def build_model(settings: Settings, task: Task, pretrained: Pretrained) -> nn.Module:
    backbone: Any = pretrained.model
    if settings.lora:
        backbone = with_lora(backbone, rank=settings.lora)
    return PrefixLanguageModel(
        backbone,
        start=pretrained.embeddings[pretrained.start(settings.start)],
        contexts=max(task.contexts, 1),
        tokens=settings.virtual_tokens,
        kind=settings.prefix,
        frozen=_trained_layers(settings) is None,
    )


def _encode(examples: Examples, pretrained: Pretrained, settings: Settings, *, separator: int) -> Batch:
    texts, contexts, length, prefix = examples.texts, examples.contexts, settings.length, settings.virtual_tokens
    if settings.reads == "utterances":
        return encode(texts, contexts, pretrained, length=length, prefix=prefix)
    return encode_replies(
        examples.prompts or (), texts, contexts, pretrained, length=length, prefix=prefix, separator=separator
    )


def _is_personal(settings: Settings) -> bool:
    return settings.prefix in ("personal x context", "personal")


def _trained_layers(settings: Settings) -> str | None:
    """Glob of the language model's parameters that all clients train."""
    if settings.lora:
        return "backbone.*lora_*"
    return f"backbone.{settings.layers}" if settings.layers else None


# Roles


def _roles(settings: Settings) -> Rules:
    prior, layers = Role.SERVER if settings.prior == "average" else Role.FEDERATED, _trained_layers(settings)
    return [
        *([("personal.embedding", Role.PRIVATE), ("prior.embedding", prior)] if _is_personal(settings) else []),
        *([("context.table", Role.KEYED)] if settings.prefix in ("personal x context", "context") else []),
        *([("context.table", Role.FEDERATED)] if settings.prefix == "shared" else []),
        *([(layers, Role.FEDERATED)] if layers else []),
        ("backbone.*", Role.FROZEN),
    ]


# Loss and local training


def loss(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
    """Mean token loss of each utterance, which is weighted in its batch by its number of tokens."""
    return predict(parameters, batch).sum(dim=-1) / batch["length"].clamp(min=1)


def prior_loss(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
    """The same with the prior in place of the personal embedding."""
    return loss(predict, {**parameters, "personal.embedding": parameters["prior.embedding"]}, batch)


def _optimizers(settings: Settings) -> dict[str, Adam]:
    """Of the embeddings that form the prefix."""
    personal_lr = settings.lr if settings.personal_lr is None else settings.personal_lr
    return {
        **({"personal.embedding": Adam(personal_lr)} if _is_personal(settings) else {}),
        **({"context.table": Adam(settings.lr)} if settings.prefix != "personal" else {}),
    }


def _phases(settings: Settings) -> tuple[Phase, ...]:
    model_lr, layers = settings.lr if settings.model_lr is None else settings.model_lr, _trained_layers(settings)
    trains = {**_optimizers(settings), **({layers: Adam(model_lr)} if layers else {})}
    joint = Phase(trains=trains, batch=settings.batch, steps=settings.local_steps, mu=settings.mu)
    if not _is_personal(settings) or settings.prior != "learned":
        return (joint,)
    prior = Phase(
        trains={"prior.embedding": _optimizers(settings)["personal.embedding"]},
        batch=settings.batch,
        steps=settings.prior_steps,
        mu=settings.mu,
        loss=prior_loss,
    )
    return joint, prior


def _personalization_phase(settings: Settings) -> Phase:
    factor = settings.personalize_lr_factor
    trains = {name: replace(adam, lr=factor * adam.lr) for name, adam in _optimizers(settings).items()}
    return Phase(trains=trains, batch=settings.batch, steps=settings.personalize_steps)


def _scoring(settings: Settings) -> TokenScoring:
    if settings.reads == "utterances":
        return TokenScoring()
    return SubwordReplyScoring(settings.evaluate_replies, decode=settings.evaluate_decode)


# The server, and the noisy average of personal embeddings (prior = "average")


def _averages(settings: Settings) -> bool:
    return _is_personal(settings) and settings.prior == "average"


def _statistics(settings: Settings) -> Statistics:
    average = noisy_average(clip=settings.average_clip, noise=settings.average_noise)
    return {"prior.embedding": average} if _averages(settings) else {}


def _server(settings: Settings) -> ServerRule:
    rule = rule_from_settings(settings, row_denominator=settings.row_denominator)
    return AverageRule(rule) if _averages(settings) else rule


# The method


def method(settings: Settings, task: Task) -> Method:
    if settings.lora and settings.layers:
        raise SettingsError("lora and layers: all clients train one of the two. Set only one of them.")
    pretrained = load_pretrained(settings.base_model)
    if settings.layers:
        require_layers(pretrained, settings.layers)
    personal, replies = _is_personal(settings), settings.reads == "replies"
    separator = pretrained.end(settings.separator) if replies else 0

    def new_private(_: torch.Generator, broadcast: Broadcast) -> dict[str, Tensor]:
        return {"personal.embedding": broadcast.parameters["prior.embedding"].clone()} if personal else {}

    return Method(
        name="fedperc",
        version=1,
        settings=settings,
        task=task,
        model=ModelSpec(
            build=lambda: build_model(settings, task, pretrained),
            roles=_roles(settings),
            encode=lambda examples: _encode(examples, pretrained, settings, separator=separator),
            new_private=new_private,
            keys={"context.table": "context"} if settings.prefix in ("personal x context", "context") else {},
            head=("personal.embedding",) if personal else (),
            reads="replies" if replies else "texts",
            window=token_window(pretrained, settings.length, others=int(replies)),
        ),
        local=LocalTraining(
            loss,
            phases=_phases(settings),
            client_weight=equal_weight,
            example_weight="length",
            statistics=_statistics(settings),
        ),
        personalize=GradientSteps((_personalization_phase(settings),)),
        scoring=_scoring(settings),
        server=_server(settings),
        artefacts=(Artefact("base_model", settings.base_model, pretrained.fingerprint),),
    )
