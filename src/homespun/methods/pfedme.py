"""pFedMe (Dinh, Tran and Nguyen, 2020): everybody's own parameters, tied to everybody's common ones.

    theta_i = argmin f_i(theta) + lambda/2 |theta - w|^2        w <- w - eta lambda (w - theta_i)

`personal = "head"` is what FedEmbed compares itself with (table 1): only heads are personal, each is tied to a global
head, and the encoder is shared as in federated averaging. `personal = "all"` is the Moreau envelope of the paper: every
parameter has a personal copy, and what is averaged are the common ones. Any method's network will do: `base_method`
names it.

| paper | here |
|---|---|
| theta_i, personal parameters | `own.*`, PRIVATE |
| w, local and global parameters | `model.*`, in the roles they have in `base_method` |
| lambda | `tie` |
| K steps that approximate theta_i, their rate | `own_steps`, `own_lr` |
| eta, the rate of w | `common_lr` |
| R local rounds | `local_rounds` (personal = "all") |
| beta, the server's averaging | the server's learning rate, of `base_method` |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from homespun.core.errors import SettingsError
from homespun.core.messages import Broadcast
from homespun.core.method import Batch, Loss, Method, Optimizer, Phase, Predict, Sgd, Task
from homespun.core.personalize import GradientSteps
from homespun.core.roles import Role
from homespun.core.tree import Tree
from homespun.methods._wrapper import WrapperSettings, load_base
from homespun.models.copies import MODEL, own_name, with_copies, without_copies


class Settings(WrapperSettings):
    personal: Literal["head", "all"] = "head"
    """Which parameters are personal: the head, as in FedEmbed's comparison, or all, as in pFedMe's paper."""
    tie: NonNegativeFloat = 0.1
    """How strongly personal parameters are tied to the common ones, lambda."""
    own_steps: PositiveInt = 10
    """Gradient steps on the personal parameters in a local round, K."""
    own_lr: NonNegativeFloat = 0.03
    """Learning rate of these steps."""
    common_lr: PositiveFloat = 1.0
    """Learning rate of the common parameters, eta."""
    local_rounds: PositiveInt = 1
    """Local rounds in a round, R, with personal = all."""
    personalize_steps: PositiveInt = 50
    """Gradient steps on the personal parameters of a user who never took part."""


SMALL = {"own_steps": 2, "personalize_steps": 2}
CORPUS = {"source": "digits", "users": 20}  # on which the contract is checked
RUN = {"rounds": 200, "cohort": 100}


def method(settings: Settings, task: Task) -> Method:
    wrapped = load_base(settings, task, name="pfedme")
    base, last = wrapped.method, wrapped.last_phase
    personal = (*wrapped.body, *wrapped.head) if settings.personal == "all" else wrapped.head
    private = wrapped.private
    personal = tuple(name for name in personal if name not in private)  # what is at home anyway is tied to nothing

    if not personal:
        raise SettingsError(
            f"pfedme: {', '.join(wrapped.head)} of {base.name} is private already: there is nothing to tie. Set "
            f"personal to all, or name a part that is shared, for instance head={wrapped.body[-1]}."
        )

    def distance(parameters: Tree) -> Tensor:
        """lambda/2 |theta - w|^2; any leading axis."""
        axes = parameters[own_name(personal[0])].dim() - wrapped.start[personal[0]].dim()
        gaps = [(parameters[own_name(name)] - parameters[MODEL + name]).flatten(axes) for name in personal]
        return 0.5 * settings.tie * sum(gap.square().sum(dim=-1) for gap in gaps)  # type: ignore[return-value]

    def tied(loss: Loss) -> Loss:
        def with_tie(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
            def inner(given: Tree, rows: Batch) -> Tensor:
                renamed = {own_name(name) if name in personal else MODEL + name: given[name] for name in given}
                return predict({**parameters, **renamed}, rows)

            losses = loss(inner, without_copies(parameters, personal), batch)
            return losses + distance(parameters)[..., None]

        return with_tie

    def only_tie(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
        rows = next(iter(batch.values()))
        apart = distance(parameters)[..., None]
        return apart.expand(rows.shape[: apart.dim()])

    def new_private(generator: torch.Generator, broadcast: Broadcast) -> dict[str, Tensor]:
        """Somebody new starts from the common parameters."""
        shared = {**broadcast.federated, **broadcast.keyed}
        start = {own_name(name): shared[MODEL + name].clone() for name in personal}
        return {**start, **wrapped.new_private(generator, broadcast, prefix=MODEL)}

    def renamed(phases: Sequence[Phase]) -> list[Phase]:
        return [
            replace(
                phase,
                trains={MODEL + name: found for name, found in phase.trains.items()},
                loss=None if phase.loss is None else tied(phase.loss),
            )
            for phase in phases
        ]

    towards: dict[str, Optimizer] = {own_name(name): Sgd(settings.own_lr) for name in personal}
    own = Phase(trains=towards, batch=last.batch, steps=settings.own_steps)
    common: dict[str, Optimizer] = {MODEL + name: Sgd(settings.common_lr) for name in personal}
    if settings.personal == "all":
        pulled = Phase(trains=common, batch=last.batch, steps=1, loss=only_tie)
        phases = (*renamed(wrapped.phases(private)), *((own, pulled) * settings.local_rounds))
    else:
        body = renamed(wrapped.phases({*wrapped.body, *private} - set(personal)))
        if not body:  # the head is all there is
            body = [Phase(trains={}, batch=last.batch, steps=1, loss=only_tie)]
        phases = (own, *body[:-1], replace(body[-1], trains={**body[-1].trains, **common}))
    return replace(
        base,
        name="pfedme",
        version=1,
        settings=settings,
        model=replace(
            base.model,
            build=lambda: with_copies(base.model.build(), personal),
            roles=[
                *((own_name(name), Role.PRIVATE) for name in personal),
                *((MODEL + name, role) for name, role in wrapped.partition.roles.items()),
            ],
            new_private=new_private,
            keys={MODEL + name: column for name, column in base.model.keys.items()},
            head=(),
        ),
        local=replace(base.local, loss=tied(base.local.loss), phases=phases),
        personalize=GradientSteps(
            (replace(own, steps=settings.personalize_steps), *renamed(wrapped.phases(private, at_home=True)))
        ),
    )
