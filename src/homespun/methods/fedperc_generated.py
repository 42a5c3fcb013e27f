"""FedPerC (Generated): preference embeddings predicted from a person's text (Silva et al., 2022, algorithm 2).

As in `fedperc`, but neither embedding is learned: two generators read them off the person's own utterances,

    prefix = Gamma(prior; all that the person said) * nu(phi_c; what they said in context c)

and only the generators, the prior and the context rows they start from are trained, federated.

| paper | here |
|---|---|
| Gamma, nu | `generators.personal.*`, `generators.context.*`, FEDERATED |
| psi_d, overwritten by its prediction | `personal.embedding`, PRIVATE: `generated` |
| phi_c, the query for context c | a row of `context.table`, KEYED |
| the randomly initialized query for the person | `prior.embedding`, FEDERATED |

Evidence is always other, earlier utterances, never the one whose tokens are being scored.

Deviations: see docs/methods/fedperc.md, numbered there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.func import functional_call

from homespun.core import settings as core_settings
from homespun.core.errors import SettingsError
from homespun.core.messages import Broadcast
from homespun.core.method import Artefact, Batch, LocalTraining, Method, ModelSpec, Phase, Predict, Sgd, Task
from homespun.core.personalize import Generated
from homespun.core.roles import Role
from homespun.core.server import FedAdam, RowDenominator, ServerName, ServerRule, equal_weight, server_rule
from homespun.core.settings import Paper
from homespun.core.tree import Tree
from homespun.evaluation.language import TokenScoring
from homespun.methods import fedperc
from homespun.models.generator import EmbeddingGenerator, with_evidence
from homespun.models.prefix_language import PrefixLanguageModel
from homespun.models.pretrained import BaseName, load_pretrained
from homespun.models.token_batches import UtteranceLength, encode, token_window


class Settings(core_settings.Settings):
    added_later = ("server_weight_decay", "server_bias_correction")

    base_model: Annotated[BaseName, Paper("DistilGPT2")] = "tiny"
    """The pre-trained language model: tiny, smollm2, a folder, or a name on the Hugging Face hub."""
    virtual_tokens: Annotated[PositiveInt, Paper(1)] = 1
    """Embedding vectors in the prefix."""
    length: UtteranceLength = 64
    """Tokens of an utterance that are read; the rest is cut off."""
    heads: PositiveInt = 4
    """Attention heads of a generator."""
    evidence: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = (1, 5, 15, 0)
    """How many other utterances a generator reads in training, in turn."""
    evidence_words: PositiveInt = 512
    """Tokens of these utterances that are read at most."""

    # Local training. A home has one person's text to learn reading from: ten steps there learn that person by heart.
    # So it takes one, and Adam is the server's.
    local_steps: Annotated[PositiveInt, Paper(10)] = 1
    """Gradient steps that a client takes in a round, K in algorithm 2."""
    batch: Annotated[PositiveInt, Paper(15)] = 15
    """Utterances in a local batch."""
    lr: Annotated[NonNegativeFloat, Paper("0.001, of Adam")] = 1.0
    """Learning rate of local SGD."""
    mu: Annotated[NonNegativeFloat, Paper(1.0)] = 1.0
    """FedProx's mu, on the shared parameters."""

    # The server
    server: Annotated[ServerName, Paper("fedadam")] = "fedadam"
    """How the server applies the averaged update."""
    server_lr: Annotated[NonNegativeFloat, Paper(1)] = 1e-3
    """Learning rate of the server."""
    server_weight_decay: NonNegativeFloat = 0.0
    """Weight decay of fedadam, subtracted from the averaged update. The published FedAdam has none."""
    server_bias_correction: bool = False
    """Whether fedadam corrects its moments for their start at zero. The published FedAdam does not."""
    row_denominator: Annotated[RowDenominator, Paper("cohort")] = "cohort"
    """A context's update is averaged over the whole cohort, or over the clients with examples in that context."""


# Gradients of generators are small, and at the start zero but for rounding, which Adam would blow up to whole steps.
SMALLEST = 1e-5
SHARED = ("generators.*", "prior.embedding")

PAPER_RUN = fedperc.PAPER_RUN
RUN = {**fedperc.RUN, "commit_every": 10}  # Adam's memory of the generators is 19 MB with `tiny`
SMALL = {"length": 12, "local_steps": 2, "batch": 3, "evidence_words": 16}


def method(settings: Settings, task: Task) -> Method:
    pretrained = load_pretrained(settings.base_model)
    if pretrained.width % settings.heads:
        raise SettingsError(f"heads: {settings.heads} do not divide the width of {pretrained.name}, {pretrained.width}")
    starts = {"personal": torch.ones(pretrained.width), "context": pretrained.embeddings[pretrained.bos]}

    def generators() -> nn.ModuleDict:
        return nn.ModuleDict({name: EmbeddingGenerator(start, heads=settings.heads) for name, start in starts.items()})

    def build() -> nn.Module:
        model = PrefixLanguageModel(
            pretrained.model,
            start=starts["context"],
            contexts=max(task.contexts, 1),
            tokens=settings.virtual_tokens,
            kind="personal x context",
        )
        model.generators = generators()
        return model

    templates = generators()  # their shape; the values are always the ones given

    def read(which: str, parameters: Tree, query: Tensor, *, tokens: Tensor, is_word: Tensor) -> Tensor:
        """One generator: queries [n, p, d] and evidence [n, E] to embeddings [n, p, d]."""
        own = {name: parameters[f"generators.{which}.{name}"] for name, _ in templates[which].named_parameters()}
        words = pretrained.embeddings.to(tokens.device)[tokens.long()]
        return functional_call(templates[which], own, (query, words, is_word))

    def loss(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
        """Every utterance with a prefix of its own, generated from what was said before it."""
        of, context = batch["evidence_context"], batch["context"].long()
        prior = parameters["prior.embedding"].expand(len(context), -1, -1)
        rows = parameters["context.table"][context]
        here = of == context[:, None]
        own = read("personal", parameters, prior, tokens=batch["evidence"], is_word=of >= 0)
        setting = read("context", parameters, rows, tokens=batch["evidence"], is_word=here)
        prefix = {"personal.embedding": own, "context.table": setting}
        return fedperc.loss(
            predict, {**parameters, **prefix}, {**batch, "context": torch.arange(len(context), device=context.device)}
        )

    def generated(parameters: Tree, data: Batch) -> Tree:
        """Both embeddings from all of somebody's text at once; without text, from nothing."""
        said = torch.arange(data["tokens"].shape[1], device=data["tokens"].device) < data["length"][:, None]
        tokens, of = data["tokens"][said][None], data["context"][:, None].expand_as(said)[said][None]
        rows = parameters["context.table"]
        each = torch.arange(len(rows), device=rows.device)[:, None]
        everything = torch.ones_like(of, dtype=torch.bool)
        (own,) = read("personal", parameters, parameters["prior.embedding"][None], tokens=tokens, is_word=everything)
        many = tokens.expand(len(rows), -1)
        return {
            "personal.embedding": own,
            "context.table": read("context", parameters, rows, tokens=many, is_word=of == each),
        }

    def encoded(examples: Any) -> Batch:
        data = encode(
            examples.texts, examples.contexts, pretrained, length=settings.length, prefix=settings.virtual_tokens
        )
        return with_evidence(data, counts=settings.evidence, words=settings.evidence_words)

    def new_private(_: torch.Generator, broadcast: Broadcast) -> dict[str, Tensor]:
        return {"personal.embedding": broadcast.federated["prior.embedding"].clone()}

    return Method(
        name="fedperc_generated",
        version=2,
        settings=settings,
        task=task,
        model=ModelSpec(
            build=build,
            roles=[
                *((name, Role.FEDERATED) for name in SHARED),
                ("personal.embedding", Role.PRIVATE),
                ("context.table", Role.KEYED),
                ("backbone.*", Role.FROZEN),
            ],
            encode=encoded,
            new_private=new_private,
            keys={"context.table": "context"},
            window=token_window(pretrained, settings.length),
        ),
        local=LocalTraining(loss, phases=(_phase(settings),), client_weight=equal_weight, example_weight="length"),
        personalize=Generated(generated),
        scoring=TokenScoring(),
        server=_server(settings),
        artefacts=(Artefact("base_model", settings.base_model, pretrained.fingerprint),),
    )


def _phase(settings: Settings) -> Phase:
    trains = {name: Sgd(settings.lr) for name in (*SHARED, "context.table")}
    return Phase(trains=trains, batch=settings.batch, steps=settings.local_steps, mu=settings.mu)


def _server(settings: Settings) -> ServerRule:
    rule = server_rule(
        settings.server,
        lr=settings.server_lr,
        row_denominator=settings.row_denominator,
        weight_decay=settings.server_weight_decay,
        bias_correction=settings.server_bias_correction,
    )
    return replace(rule, tau=SMALLEST) if isinstance(rule, FedAdam) else rule
