"""Split-Learning, as FedPerC compares itself with it (Silva, Tambwekar and Gombolay, 2022, section 4, appendix B).

"Our Split-Learning baseline assigns a unique model head to each user and to each context, and each user only updates
their own model head and the contexts that they use." Over the last hidden state h of a frozen language model:

    logits = (h A_d' + h B_c') / 2        A_d is private to user d, B_c is shared by all users of context c

| paper | here |
|---|---|
| A_d, personal model head | `personal.head`, PRIVATE |
| B_c, context model heads | a row of `context.heads`, KEYED |
| theta, the language model without its last layer | `backbone.*`, FROZEN |
| local updates, data points per training pass | `local_steps`, `batch` |

Deviations and readings (12 in docs/methods/fedperc.md):
1. The paper does not say how the two heads are combined; here their logits are averaged. Both start as the pre-trained
   head, so that the untrained method equals the pre-trained model.
2. The paper does not say where a new user's head starts; here it also starts as the pre-trained one.
3. BOS takes the place of FedPerC's prefix.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from homespun.core.messages import Broadcast
from homespun.core.method import Adam, Artefact, LocalTraining, Method, ModelSpec, Phase, Task
from homespun.core.personalize import GradientSteps
from homespun.core.roles import Role
from homespun.core.server import equal_weight
from homespun.core.settings import Paper
from homespun.evaluation.language import TokenScoring
from homespun.methods import fedperc
from homespun.models.heads import ADAM_EPSILON, HeadSettings, SplitHeads, output_head
from homespun.models.pretrained import load_pretrained
from homespun.models.token_batches import encode, token_window


class Settings(HeadSettings):
    personal_lr: Annotated[NonNegativeFloat | None, Paper(0.001)] = None
    """Learning rate for the user's private head. Not set: the same as `lr`."""


# A private head has 8 MB with `tiny`, and a commit of 19 users writes 150 MB. So only every tenth round is committed,
# and an interrupted run repeats at most nine rounds.
PAPER_RUN = fedperc.PAPER_RUN
RUN = {**fedperc.RUN, "commit_every": 10}

# Sizes at which the contract is checked in seconds
SMALL = {"length": 12, "local_steps": 2, "batch": 3, "personalize_steps": 2}


def method(settings: Settings, task: Task) -> Method:
    pretrained = load_pretrained(settings.base_model)
    personal_lr = settings.lr if settings.personal_lr is None else settings.personal_lr
    lrs = {"personal.head": personal_lr, "context.heads": settings.lr}
    trains = {name: Adam(lr, eps=ADAM_EPSILON) for name, lr in lrs.items()}
    joint = Phase(trains=trains, batch=settings.batch, steps=settings.local_steps, mu=settings.mu)
    adapts = {name: Adam(settings.personalize_lr_factor * lr, eps=ADAM_EPSILON) for name, lr in lrs.items()}
    personalization = Phase(trains=adapts, batch=settings.batch, steps=settings.personalize_steps)

    def new_private(_: torch.Generator, __: Broadcast) -> dict[str, Tensor]:
        return {"personal.head": output_head(pretrained)}

    return Method(
        name="split_learning",
        version=2,
        settings=settings,
        task=task,
        model=ModelSpec(
            build=lambda: SplitHeads(pretrained, contexts=max(task.contexts, 1), start=settings.start),
            roles=[("personal.head", Role.PRIVATE), ("context.heads", Role.KEYED), ("backbone.*", Role.FROZEN)],
            encode=lambda examples: encode(
                examples.texts, examples.contexts, pretrained, length=settings.length, prefix=1
            ),
            new_private=new_private,
            keys={"context.heads": "context"},
            window=token_window(pretrained, settings.length),
        ),
        local=LocalTraining(fedperc.loss, phases=(joint,), client_weight=equal_weight, example_weight="length"),
        personalize=GradientSteps((personalization,)),
        scoring=TokenScoring(),
        server=settings.rule(),
        artefacts=(Artefact("base_model", settings.base_model, pretrained.fingerprint),),
    )
