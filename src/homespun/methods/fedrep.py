"""FedRep (Collins, Hassani, Mokhtari and Shakkottai, 2021): one shared representation, a private head per user.

    y = h_i(phi(x))

In a round (algorithm 1) a client first takes some steps on its head, with the representation as broadcast, and then
trains the representation, with the head it has now. The server averages the representations. The network is that of any
method: `base_method` names it, and `head` the parameters that become private (by default that method's last layer).

| paper | here |
|---|---|
| phi, the representation | all other shared parameters of `base_method`, in the roles they have there |
| h_i, the head of client i | `head`, PRIVATE |
| tau_h, alpha, local updates of the head | `head_steps`, `head_lr` |
| local updates of the representation | the phases of `base_method` |

Deviations and readings: 14 in docs/methods/fedembed.md.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from homespun.core.messages import Broadcast
from homespun.core.method import Method, Phase, Sgd, Task
from homespun.core.personalize import GradientSteps
from homespun.core.roles import Role
from homespun.methods._wrapper import WrapperSettings, load_base


class Settings(WrapperSettings):
    head_steps: PositiveInt = 10
    """Gradient steps on a client's private head in a round, before the representation is trained; tau_h."""
    head_lr: NonNegativeFloat = 0.03
    """Learning rate of these steps, alpha."""
    personalize_steps: PositiveInt = 50
    """Gradient steps on a new user's head, in personalization."""


SMALL = {"head_steps": 2, "personalize_steps": 2}
CORPUS = {"source": "digits", "users": 20}  # for the contract tests
RUN = {"rounds": 200, "cohort": 100}


def method(settings: Settings, task: Task) -> Method:
    base = load_base(settings, task, name="fedrep")
    private = {*base.head, *base.private}
    trains = {name: Sgd(settings.head_lr) for name in base.head}
    head_first = Phase(trains=trains, batch=base.last_phase.batch, steps=settings.head_steps)
    new_head = replace(head_first, steps=settings.personalize_steps)

    def new_private(generator: torch.Generator, broadcast: Broadcast) -> dict[str, Tensor]:
        start = {name: base.start[name].clone() for name in base.head}
        return {**start, **base.new_private(generator, broadcast)}

    return replace(
        base.method,
        name="fedrep",
        version=1,
        settings=settings,
        model=replace(
            base.model,
            roles=[(name, Role.PRIVATE if name in private else role) for name, role in base.partition.roles.items()],
            new_private=new_private,
            keys={name: column for name, column in base.model.keys.items() if name not in base.head},
        ),
        local=replace(base.local, phases=(head_first, *base.phases({*base.body, *private} - set(base.head)))),
        personalize=GradientSteps((new_head, *base.phases(set(base.private) - set(base.head), personalization=True))),
    )
