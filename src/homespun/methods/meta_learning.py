"""Meta-Learning, as FedPerC compares itself with it (Silva, Tambwekar and Gombolay, 2022, section 4, appendix B).

"For our Meta-Learning baseline, the last layer is unfrozen and all users jointly update this final output layer (note:
there is no dedicated context head in this approach)"; then each client fine-tunes the shared head. Over the last hidden
state h of a frozen language model:

    logits = h W'        W is shared by all users; in personalization, a client fine-tunes its own copy of W

| paper | here |
|---|---|
| W, the shared model head | `head.weight`, FEDERATED |
| theta, the language model without its last layer | `backbone.*`, FROZEN |
| local updates, data points per training pass | `local_steps`, `batch` |

Deviations and readings (13 in docs/methods/fedperc.md):
1. As the paper describes it, nothing is meta-learned (as in Finn et al., 2017): one head is trained by FedAvg with
   FedProx, then fine-tuned.
2. BOS takes the place of FedPerC's prefix.
"""

from __future__ import annotations

from homespun.core.method import Adam, Artefact, LocalTraining, Method, ModelSpec, Phase, Task
from homespun.core.personalize import GradientSteps
from homespun.core.roles import Role
from homespun.core.server import equal_weight
from homespun.evaluation.language import TokenScoring
from homespun.methods import fedperc
from homespun.models.heads import ADAM_EPSILON, HeadSettings, SharedHead
from homespun.models.pretrained import load_pretrained
from homespun.models.token_batches import encode, token_window


class Settings(HeadSettings):
    pass


# The server's state is a whole head, with FedAdam three of them, so it is not committed in every round.
PAPER_RUN = fedperc.PAPER_RUN
RUN = {**fedperc.RUN, "commit_every": 10}

# Sizes at which the contract is checked in seconds
SMALL = {"length": 12, "local_steps": 2, "batch": 3, "personalize_steps": 2}


def method(settings: Settings, task: Task) -> Method:
    pretrained = load_pretrained(settings.base_model)
    joint = {"head.weight": Adam(settings.lr, eps=ADAM_EPSILON)}
    fine_tuning = {"head.weight": Adam(settings.personalize_lr_factor * settings.lr, eps=ADAM_EPSILON)}
    return Method(
        name="meta_learning",
        version=2,
        settings=settings,
        task=task,
        model=ModelSpec(
            build=lambda: SharedHead(pretrained, start=settings.start),
            roles=[("head.weight", Role.FEDERATED), ("backbone.*", Role.FROZEN)],
            encode=lambda examples: encode(
                examples.texts, examples.contexts, pretrained, length=settings.length, prefix=1
            ),
            head=("head.weight",),
            window=token_window(pretrained, settings.length),
        ),
        local=LocalTraining(
            fedperc.loss,
            phases=(Phase(trains=joint, batch=settings.batch, steps=settings.local_steps, mu=settings.mu),),
            client_weight=equal_weight,
            example_weight="length",
        ),
        personalize=GradientSteps((Phase(trains=fine_tuning, batch=settings.batch, steps=settings.personalize_steps),)),
        scoring=TokenScoring(),
        server=settings.rule(),
        artefacts=(Artefact("base_model", settings.base_model, pretrained.fingerprint),),
    )
