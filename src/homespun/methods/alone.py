"""Every user alone: the control that shares nothing. The network of any method, trained on each client by itself.

All parameters that `base_method` shares are PRIVATE here; they start where that method's shared parameters start, for
instance at a pre-trained model. A round is local training without a server. What users gain from training together is
the difference to this.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from homespun.core.messages import Broadcast
from homespun.core.method import Method, Task
from homespun.core.personalize import GradientSteps
from homespun.core.roles import Role
from homespun.methods._wrapper import WrapperSettings, load_base


class Settings(WrapperSettings):
    base_method: str = "furl"
    """The method whose network, loss and examples are used."""


SMALL = {"base_settings": {"length": 24, "character_dim": 8, "lstm_dim": 12, "hidden_dim": 16, "user_dim": 6}}


def method(settings: Settings, task: Task) -> Method:
    base = load_base(settings, task, name="alone")
    shared = {*base.head, *base.body}

    def new_private(generator: torch.Generator, broadcast: Broadcast) -> dict[str, Tensor]:
        start = {name: base.start[name].clone() for name in shared}
        # the base method may derive private parameters from shared ones, which are not broadcast here
        known = replace(broadcast, federated={**broadcast.federated, **start})
        return {**start, **base.new_private(generator, known)}

    everything = {*shared, *base.private}
    return replace(
        base.method,
        name="alone",
        version=1,
        settings=settings,
        model=replace(
            base.model,
            roles=[(name, Role.PRIVATE if name in everything else role) for name, role in base.partition.roles.items()],
            new_private=new_private,
            keys={},
            head=(),
        ),
        local=replace(base.local, phases=base.phases(everything)),
        personalize=GradientSteps(base.phases(everything)),
    )
