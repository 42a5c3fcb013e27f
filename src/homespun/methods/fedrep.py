"""FedRep (Collins, Hassani, Mokhtari and Shakkottai, 2021): one representation for all, a head for everybody.

A round of a client (algorithm 1): first some steps on its own head, with the representation as it was sent; then the
representation, with the head as it is now. The server averages the representations. Any method's network will do:
`base_method` names it, and `head` the parameters that become everybody's own (by default that method's last layer).

| paper | here |
|---|---|
| phi, the representation | what else `base_method` shares, in its own roles |
| h_i, the head of client i | `head`, PRIVATE |
| tau_h, alpha, local updates of the head | `head_steps`, `head_lr` |
| local updates of the representation | the phases of `base_method` |
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
    """Gradient steps on a client's own head in a round, before the representation is trained; tau_h."""
    head_lr: NonNegativeFloat = 0.03
    """Learning rate of these steps, alpha."""
    personalize_steps: PositiveInt = 50
    """Gradient steps on the head of a user who never took part."""


SMALL = {"head_steps": 2, "personalize_steps": 2}
CORPUS = {"source": "digits", "users": 20}  # on which the contract is checked
RUN = {"rounds": 200, "cohort": 100}


def method(settings: Settings, task: Task) -> Method:
    base = load_base(settings, task, name="fedrep")
    private = {*base.head, *base.private}
    own = {name: Sgd(settings.head_lr) for name in base.head}
    head_first = Phase(trains=own, batch=base.last_phase.batch, steps=settings.head_steps)
    at_home = replace(head_first, steps=settings.personalize_steps)

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
        personalize=GradientSteps((at_home, *base.phases(set(base.private) - set(base.head), at_home=True))),
    )
