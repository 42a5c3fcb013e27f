"""pFedMe (Dinh, Tran and Nguyen, 2020): personal parameters, tied to common ones.

    theta_i = argmin f_i(theta) + lambda/2 |theta - w|^2        w <- w - eta lambda (w - theta_i)

With `personal = "head"`, FedEmbed's baseline (table 1), only heads are personal, each tied to a global head, and the
encoder is shared as in federated averaging. With `personal = "all"`, the Moreau envelope of the paper, every parameter
has a personal copy and only the common ones are averaged. The network is that of any method: `base_method` names it.

| paper | here |
|---|---|
| theta_i, personal parameters | `own.*`, PRIVATE |
| w, local and global parameters | `model.*`, in the roles they have in `base_method` |
| lambda | `tie` |
| K steps that approximate theta_i, their rate | `own_steps`, `own_lr` |
| eta, the rate of w | `common_lr` |
| R local rounds | `local_rounds` (personal = "all") |
| beta, the server's averaging | the server's learning rate, of `base_method` |

Deviations and readings: 14 in docs/methods/fedembed.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from homespun.methods._wrapper import BaseMethod, WrapperSettings, load_base, words_only
from homespun.models.copies import MODEL, own_name, with_copies, without_copies


class Settings(WrapperSettings):
    personal: Literal["head", "all"] = "head"
    """Which parameters are personal: the head, as in FedEmbed's baseline, or all, as in pFedMe's paper."""
    tie: NonNegativeFloat = 0.1
    """Strength of the tie between personal and common parameters, lambda."""
    own_steps: PositiveInt = 10
    """Gradient steps on the personal parameters in a local round, K."""
    own_lr: NonNegativeFloat = 0.03
    """Learning rate of these steps."""
    common_lr: PositiveFloat = 1.0
    """Learning rate of the common parameters, eta."""
    local_rounds: PositiveInt = 1
    """Number of local rounds in a round, R, with personal = all."""
    personalize_steps: PositiveInt = 50
    """Gradient steps on a new user's personal parameters, in personalization."""


SMALL = {"own_steps": 2, "personalize_steps": 2}
CORPUS = {"source": "digits", "users": 20}  # for the contract tests
RUN = {"rounds": 200, "cohort": 100}


# The tie between personal and common parameters


@dataclass(frozen=True)
class Tie:
    """lambda/2 |theta - w|^2 over the named parameters, and losses with it."""

    base: BaseMethod
    names: tuple[str, ...]  # of the personal parameters
    strength: float  # lambda

    def penalty(self, parameters: Tree) -> Tensor:
        """lambda/2 |theta - w|^2; any leading axis."""
        axes = parameters[own_name(self.names[0])].dim() - self.base.start[self.names[0]].dim()
        gaps = [(parameters[own_name(name)] - parameters[MODEL + name]).flatten(axes) for name in self.names]
        return 0.5 * self.strength * sum(gap.square().sum(dim=-1) for gap in gaps)  # type: ignore[return-value]

    def penalize(self, loss: Loss) -> Loss:
        """The base method's loss of theta, plus the penalty."""

        def penalized(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
            def predict_personal(given: Tree, rows: Batch) -> Tensor:
                renamed = {own_name(name) if name in self.names else MODEL + name: given[name] for name in given}
                return predict({**parameters, **renamed}, rows)

            losses = loss(predict_personal, without_copies(parameters, self.names), batch)
            return losses + self.penalty(parameters)[..., None]

        return penalized

    def penalty_loss(self, predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
        """The penalty alone, for every example."""
        rows = next(iter(batch.values()))
        penalty = self.penalty(parameters)[..., None]
        return penalty.expand(rows.shape[: penalty.dim()])

    def rename(self, phases: Sequence[Phase]) -> list[Phase]:
        """Phases of the base method, over this network's names."""
        return [
            replace(
                phase,
                trains={MODEL + name: optimizer for name, optimizer in phase.trains.items()},
                loss=None if phase.loss is None else self.penalize(phase.loss),
            )
            for phase in phases
        ]


# Local training


def _personal_phase(settings: Settings, tie: Tie, *, steps: int) -> Phase:
    """K steps that approximate theta_i."""
    trains: dict[str, Optimizer] = {own_name(name): Sgd(settings.own_lr) for name in tie.names}
    return Phase(trains=trains, batch=tie.base.last_phase.batch, steps=steps)


def _phases(settings: Settings, tie: Tie) -> tuple[Phase, ...]:
    base, batch = tie.base, tie.base.last_phase.batch
    personal = _personal_phase(settings, tie, steps=settings.own_steps)
    common: dict[str, Optimizer] = {MODEL + name: Sgd(settings.common_lr) for name in tie.names}
    if settings.personal == "all":
        pull = Phase(trains=common, batch=batch, steps=1, loss=tie.penalty_loss)
        return (*tie.rename(base.phases(base.private)), *((personal, pull) * settings.local_rounds))
    body = tie.rename(base.phases({*base.body, *base.private} - set(tie.names)))
    if not body:  # the network has a head only
        body = [Phase(trains={}, batch=batch, steps=1, loss=tie.penalty_loss)]
    return (personal, *body[:-1], replace(body[-1], trains={**body[-1].trains, **common}))


# The method


def method(settings: Settings, task: Task) -> Method:
    base = load_base(settings, task, name="pfedme")
    tie = Tie(base, _personal_names(settings, base), settings.tie)

    def new_private(generator: torch.Generator, broadcast: Broadcast) -> dict[str, Tensor]:
        """The personal parameters of a new user start from the common ones."""
        shared = {**broadcast.federated, **broadcast.keyed}
        start = {own_name(name): shared[MODEL + name].clone() for name in tie.names}
        return {**start, **base.new_private(generator, broadcast, prefix=MODEL)}

    return replace(
        base.method,
        name="pfedme",
        version=1,
        settings=settings,
        model=replace(
            base.model,
            build=lambda: with_copies(base.model.build(), tie.names),
            roles=[
                *((own_name(name), Role.PRIVATE) for name in tie.names),
                *((MODEL + name, role) for name, role in base.partition.roles.items()),
            ],
            new_private=new_private,
            keys={MODEL + name: column for name, column in base.model.keys.items()},
            head=(),
        ),
        local=replace(base.local, loss=tie.penalize(base.local.loss), phases=_phases(settings, tie)),
        scoring=words_only(base.method.scoring),
        personalize=GradientSteps(
            (
                _personal_phase(settings, tie, steps=settings.personalize_steps),
                *tie.rename(base.phases(base.private, personalization=True)),
            )
        ),
    )


def _personal_names(settings: Settings, base: BaseMethod) -> tuple[str, ...]:
    names = (*base.body, *base.head) if settings.personal == "all" else base.head
    personal = tuple(name for name in names if name not in base.private)  # a private parameter is tied to nothing
    if not personal:
        raise SettingsError(
            f"pfedme: {', '.join(base.head)} of {base.method.name} is private already, so it has no common value to be "
            f"tied to. Set personal to all, or name a shared parameter, for instance head={base.body[-1]}."
        )
    return personal
