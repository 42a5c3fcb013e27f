"""FedPerC (Generated): preference embeddings computed from a user's text (Silva et al., 2022, algorithm 2).

As in `fedperc`, but neither embedding is learned: two generators compute them from the user's own utterances,

    prefix = Gamma(prior; all utterances of the user) * nu(phi_c; those in context c)

and only the generators, the prior and the context rows that they start from are trained, federated.

| paper | here |
|---|---|
| Gamma, nu | `generators.personal.*`, `generators.context.*`, FEDERATED |
| psi_d, overwritten by its prediction | `personal.embedding`, PRIVATE: `Generators.generate` |
| phi_c, the query for context c | a row of `context.table`, KEYED |
| the randomly initialized query for the user | `prior.embedding`, FEDERATED |

Evidence is always other, earlier utterances, never the one whose tokens are scored.

Deviations and readings, numbered as in docs/methods/fedperc.md, besides those of `fedperc`:
6. Both generators are trained, and the query is the embedding, as section 3.2.1 says.
7. A prefix is generated once from other utterances, not word by word from the utterance that is scored.
8. The query of the personal generator is a prior that all users share. A client takes one step of SGD, and the server
   uses Adam.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from homespun.core.server import FedAdam, RowDenominator, ServerName, ServerRule, equal_weight, rule_from_settings
from homespun.core.settings import Paper
from homespun.core.tree import Tree
from homespun.evaluation.language import TokenScoring
from homespun.methods import fedperc
from homespun.models.generator import EmbeddingGenerator, with_evidence
from homespun.models.prefix_language import PrefixLanguageModel
from homespun.models.pretrained import BaseName, Pretrained, load_pretrained
from homespun.models.token_batches import UtteranceLength, encode, token_window


class Settings(core_settings.Settings):
    added_later = ("server_weight_decay", "server_bias_correction")

    base_model: Annotated[BaseName, Paper("DistilGPT2")] = "tiny"
    """The pre-trained language model: tiny, smollm2, a folder, or a name on the Hugging Face hub."""
    virtual_tokens: Annotated[PositiveInt, Paper(1)] = 1
    """Embedding vectors in the prefix."""
    length: UtteranceLength = 64
    """Tokens of an utterance that are read; the rest is truncated."""
    heads: PositiveInt = 4
    """Attention heads of a generator."""
    evidence: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = (1, 5, 15, 0)
    """Numbers of other utterances that a generator reads in training, used in turn."""
    evidence_words: PositiveInt = 512
    """Maximum number of tokens of these utterances that are read."""

    # Local training. A client has the text of one user only: ten local steps would memorize that user. So a client
    # takes one step, and Adam runs on the server.
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


# FedAdam's tau. Gradients of generators are small, and at the start only rounding error, which a smaller tau would
# amplify to full steps.
TAU = 1e-5
SHARED = ("generators.*", "prior.embedding")

PAPER_RUN = fedperc.PAPER_RUN
RUN = {**fedperc.RUN, "commit_every": 10}  # Adam's moments of the generators have 19 MB with `tiny`
SMALL = {"length": 12, "local_steps": 2, "batch": 3, "evidence_words": 16}


# The model


def _new_generators(pretrained: Pretrained, settings: Settings) -> nn.ModuleDict:
    starts = {"personal": torch.ones(pretrained.width), "context": pretrained.embeddings[pretrained.bos]}
    return nn.ModuleDict({name: EmbeddingGenerator(start, heads=settings.heads) for name, start in starts.items()})


def build_model(settings: Settings, task: Task, pretrained: Pretrained) -> nn.Module:
    model = PrefixLanguageModel(
        pretrained.model,
        start=pretrained.embeddings[pretrained.bos],
        contexts=max(task.contexts, 1),
        tokens=settings.virtual_tokens,
        kind="personal x context",
    )
    model.generators = _new_generators(pretrained, settings)
    return model


def _encode(examples: Any, pretrained: Pretrained, settings: Settings) -> Batch:
    data = encode(examples.texts, examples.contexts, pretrained, length=settings.length, prefix=settings.virtual_tokens)
    return with_evidence(data, counts=settings.evidence, words=settings.evidence_words)


# Roles

ROLES = (
    *((name, Role.FEDERATED) for name in SHARED),
    ("personal.embedding", Role.PRIVATE),
    ("context.table", Role.KEYED),
    ("backbone.*", Role.FROZEN),
)


# Generation and loss


@dataclass(frozen=True)
class Generators:
    """Gamma and nu as functions of the parameters."""

    templates: nn.ModuleDict  # their shapes; the values always come from `parameters`
    pretrained: Pretrained

    def generate(self, parameters: Tree, data: Batch) -> Tree:
        """Both embeddings from all text of a user at once; without text, from no evidence."""
        is_token = torch.arange(data["tokens"].shape[1], device=data["tokens"].device) < data["length"][:, None]
        tokens, of = data["tokens"][is_token][None], data["context"][:, None].expand_as(is_token)[is_token][None]
        rows = parameters["context.table"]
        contexts = torch.arange(len(rows), device=rows.device)[:, None]
        everything = torch.ones_like(of, dtype=torch.bool)
        prior = parameters["prior.embedding"][None]
        (personal,) = self._apply("personal", parameters, prior, tokens=tokens, is_word=everything)
        repeated = tokens.expand(len(rows), -1)
        return {
            "personal.embedding": personal,
            "context.table": self._apply("context", parameters, rows, tokens=repeated, is_word=of == contexts),
        }

    def loss(self, predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
        """As in `fedperc`; every utterance has a prefix of its own, generated from its evidence."""
        of, context = batch["evidence_context"], batch["context"].long()
        prior = parameters["prior.embedding"].expand(len(context), -1, -1)
        rows, same_context = parameters["context.table"][context], of == context[:, None]
        personal = self._apply("personal", parameters, prior, tokens=batch["evidence"], is_word=of >= 0)
        contextual = self._apply("context", parameters, rows, tokens=batch["evidence"], is_word=same_context)
        prefix = {"personal.embedding": personal, "context.table": contextual}
        own_row = torch.arange(len(context), device=context.device)
        return fedperc.loss(predict, {**parameters, **prefix}, {**batch, "context": own_row})

    def _apply(self, which: str, parameters: Tree, query: Tensor, *, tokens: Tensor, is_word: Tensor) -> Tensor:
        """One generator: queries [n, p, d] and evidence [n, E] to embeddings [n, p, d]."""
        template = self.templates[which]
        own = {name: parameters[f"generators.{which}.{name}"] for name, _ in template.named_parameters()}
        words = self.pretrained.embeddings.to(tokens.device)[tokens.long()]
        return functional_call(template, own, (query, words, is_word))


# Local training and the server


def _phase(settings: Settings) -> Phase:
    trains = {name: Sgd(settings.lr) for name in (*SHARED, "context.table")}
    return Phase(trains=trains, batch=settings.batch, steps=settings.local_steps, mu=settings.mu)


def _server(settings: Settings) -> ServerRule:
    rule = rule_from_settings(settings, row_denominator=settings.row_denominator)
    return replace(rule, tau=TAU) if isinstance(rule, FedAdam) else rule


# The method


def method(settings: Settings, task: Task) -> Method:
    pretrained = load_pretrained(settings.base_model)
    if pretrained.width % settings.heads:
        raise SettingsError(f"heads: {settings.heads} do not divide the width of {pretrained.name}, {pretrained.width}")
    generators = Generators(_new_generators(pretrained, settings), pretrained)

    def new_private(_: torch.Generator, broadcast: Broadcast) -> dict[str, Tensor]:
        return {"personal.embedding": broadcast.federated["prior.embedding"].clone()}

    return Method(
        name="fedperc_generated",
        version=2,
        settings=settings,
        task=task,
        model=ModelSpec(
            build=lambda: build_model(settings, task, pretrained),
            roles=ROLES,
            encode=lambda examples: _encode(examples, pretrained, settings),
            new_private=new_private,
            keys={"context.table": "context"},
            window=token_window(pretrained, settings.length),
        ),
        local=LocalTraining(
            generators.loss, phases=(_phase(settings),), client_weight=equal_weight, example_weight="length"
        ),
        personalize=Generated(generators.generate),
        scoring=TokenScoring(),
        server=_server(settings),
        artefacts=(Artefact("base_model", settings.base_model, pretrained.fingerprint),),
    )
