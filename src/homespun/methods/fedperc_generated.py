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

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.func import functional_call

from homespun.core.method import Batch, Method, Predict, Sgd, Task
from homespun.core.roles import Role
from homespun.core.server import FedAdam
from homespun.core.tree import Tree
from homespun.methods import fedperc
from homespun.models.generator import EmbeddingGenerator, with_evidence
from homespun.models.pretrained import load_pretrained


class Settings(fedperc.Settings):
    # A home has one person's text to learn reading from: ten steps there learn that person by heart. So it takes one,
    # and Adam is the server's.
    local_steps: PositiveInt = 1
    rate: NonNegativeFloat = 1.0  # of gradient descent at home
    server: Literal["fedavg", "fedadam"] = "fedadam"
    server_rate: NonNegativeFloat | None = 1e-3

    heads: PositiveInt = 4  # of the generators' attention
    evidence: tuple[NonNegativeInt, ...] = (1, 5, 15, 0)  # earlier utterances to read in training, in turn
    evidence_words: PositiveInt = 256  # at most so many tokens of them


# Gradients of generators are small, and at the start zero but for rounding, which Adam would blow up to whole steps.
SMALLEST = 1e-5

RUN = fedperc.RUN
SMALL = {**fedperc.SMALL, "evidence_words": 16}


def method(settings: Settings, task: Task) -> Method:
    plain = fedperc.method(settings, task)
    pretrained = load_pretrained(settings.base)
    starts = {"personal": torch.ones(pretrained.width), "context": pretrained.embeddings[pretrained.bos]}

    def generators() -> nn.ModuleDict:
        return nn.ModuleDict({name: EmbeddingGenerator(start, heads=settings.heads) for name, start in starts.items()})

    def build() -> nn.Module:
        model = plain.build()
        model.generators = generators()
        return model

    templates = generators()  # their shape; the values are always the ones given

    def read(which: str, parameters: Tree, query: Tensor, *, tokens: Tensor, is_word: Tensor) -> Tensor:
        """One generator: queries [n, p, d] and evidence [n, E] to embeddings [n, p, d]."""
        own = {name: parameters[f"generators.{which}.{name}"] for name, _ in templates[which].named_parameters()}
        words = pretrained.embeddings[tokens.long()]
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
        return fedperc.loss(predict, {**parameters, **prefix}, {**batch, "context": torch.arange(len(context))})

    def generated(parameters: Tree, data: Batch) -> Tree:
        """Both embeddings from all of somebody's text at once; without text, from nothing."""
        said = torch.arange(data["tokens"].shape[1]) < data["length"][:, None]
        tokens, of = data["tokens"][said][None], data["context"][:, None].expand_as(said)[said][None]
        rows = parameters["context.table"]
        each = torch.arange(len(rows))[:, None]
        everything = torch.ones_like(of, dtype=torch.bool)
        (own,) = read("personal", parameters, parameters["prior.embedding"][None], tokens=tokens, is_word=everything)
        many = tokens.expand(len(rows), -1)
        return {
            "personal.embedding": own,
            "context.table": read("context", parameters, rows, tokens=many, is_word=of == each),
        }

    def encode(examples: object) -> Batch:
        return with_evidence(plain.encode(examples), counts=settings.evidence, words=settings.evidence_words)

    shared: Sequence[str] = ("generators.*", "prior.embedding", "context.table")
    joint = replace(plain.phases[0], trains={name: Sgd(settings.rate) for name in shared})
    return replace(
        plain,
        name="fedperc_generated",
        build=build,
        rules=[("generators.*", Role.FEDERATED), *plain.rules],
        encode=encode,
        loss=loss,
        phases=(joint,),
        personalize=(),
        generate=generated,
        server=replace(plain.server, adaptivity=SMALLEST) if isinstance(plain.server, FedAdam) else plain.server,
    )
