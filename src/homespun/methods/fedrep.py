"""FedRep (Collins, Hassani, Mokhtari and Shakkottai, 2021): one representation for all, a head for everybody.

A round of a client (algorithm 1): first some steps on its own head, with the representation as it was sent; then the
representation, with the head as it is now. The server averages the representations. Any method's network will do:
`of` names it, and `head` the parameters that become everybody's own (by default that method's last layer).

| paper | here |
|---|---|
| phi, the representation | what else `of` shares, in its own roles |
| h_i, the head of client i | `head`, PRIVATE |
| tau_h, alpha, local updates of the head | `head_steps`, `head_rate` |
| local updates of the representation | the phases of `of` |
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
from homespun.methods._wrapper import OntoSettings, underneath


class Settings(OntoSettings):
    head_steps: PositiveInt = 10
    """Gradient steps on a client's own head in a round, before the representation is trained; tau_h."""
    head_rate: NonNegativeFloat = 0.03
    """Learning rate of these steps, alpha."""
    home_steps: PositiveInt = 50
    """Gradient steps on the head of a user who never took part."""


SMALL = {"head_steps": 2, "home_steps": 2}
CORPUS = {"source": "digits", "users": 20}  # on which the contract is checked
RUN = {"rounds": 200, "cohort": 100}


def method(settings: Settings, task: Task) -> Method:
    onto = underneath(settings, task, name="fedrep")
    base, last = onto.method, onto.method.phases[-1]
    private = {*onto.head, *onto.private}
    own = {name: Sgd(settings.head_rate) for name in onto.head}
    head_first = Phase(trains=own, batch=last.batch, steps=settings.head_steps)

    def new_private(generator: torch.Generator, broadcast: Broadcast) -> dict[str, Tensor]:
        start = {name: onto.start[name].clone() for name in onto.head}
        return {**start, **onto.new_private(generator, broadcast)}

    return replace(
        base,
        name="fedrep",
        version=1,
        settings=settings,
        rules=[(name, Role.PRIVATE if name in private else role) for name, role in onto.partition.roles.items()],
        phases=(head_first, *onto.phases({*onto.body, *private} - set(onto.head))),
        personalize=GradientSteps(
            (
                replace(head_first, steps=settings.home_steps),
                *onto.phases(set(onto.private) - set(onto.head), at_home=True),
            )
        ),
        new_private=new_private,
        keys={name: column for name, column in base.keys.items() if name not in onto.head},
    )
