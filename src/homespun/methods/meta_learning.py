"""Meta-Learning, as FedPerC compares itself with it (Silva, Tambwekar and Gombolay, 2022, section 4, appendix B).

"For our Meta-Learning baseline, the last layer is unfrozen and all users jointly update this final output layer (note:
there is no dedicated context head in this approach)"; at home, the shared head is fine-tuned. Over the last hidden
state h of a frozen language model:

    logits = h W'        W is everybody's; at home, a copy of W that has been trained further

| paper | here |
|---|---|
| W, the shared model head | `head.weight`, FEDERATED |
| theta, the language model without its last layer | `backbone.*`, FROZEN |
| local updates, data points per training pass | `local_steps`, `batch` |

1. In spite of its name nothing is learned about learning (as in Finn et al., 2017): it is FedAvg on the head with
   FedProx, then fine-tuning, which is what the paper describes.
2. An utterance is read behind the token that begins a text, where FedPerC has its prefix.
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


# The server's state is a whole head, with FedAdam three of them: it is not written every round.
PAPER_RUN = fedperc.PAPER_RUN
RUN = {**fedperc.RUN, "commit_every": 10}

# Sizes at which the contract is checked in seconds
SMALL = {"length": 12, "local_steps": 2, "batch": 3, "personalize_steps": 2}


def method(settings: Settings, task: Task) -> Method:
    pretrained = load_pretrained(settings.base_model)
    together = {"head.weight": Adam(settings.lr, eps=ADAM_EPSILON)}
    at_home = {"head.weight": Adam(settings.personalize_lr_factor * settings.lr, eps=ADAM_EPSILON)}
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
            phases=(Phase(trains=together, batch=settings.batch, steps=settings.local_steps, mu=settings.mu),),
            client_weight=equal_weight,
            example_weight="length",
        ),
        personalize=GradientSteps((Phase(trains=at_home, batch=settings.batch, steps=settings.personalize_steps),)),
        scoring=TokenScoring(),
        server=settings.rule(),
        artefacts=(Artefact("base_model", settings.base_model, pretrained.fingerprint),),
    )
