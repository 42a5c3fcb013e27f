"""PFedKM, as FedEmbed compares itself with it (Silva et al., 2022, table 1; after Tang, Guo and Guo, 2021).

"A shared feature encoder with sub-population model heads assigned by K-means clustering over user gradients." A round
of a client: take the gradient of a reference head on its own examples, find the centroid that is nearest to it, and
train the encoder and that cluster's head. It also tells its gradient's direction to its centroid: the mean over a
cluster's members is Lloyd's step of k-means, one a round. Any method's network will do: `of` names it, and `head` the
part that clusters have of their own.

| paper | here |
|---|---|
| heads of the sub-populations | rows of `heads.*`, KEYED by the column `cluster` |
| k-means' centroids | rows of `centroids`, KEYED by the same |
| a user's gradient | minus `probe.*`, PRIVATE; only its direction is told |

1. FedEmbed clusters the gradient of the whole network, which it calls impractically slow; here it is the head's, scaled
   to length 1. `gradient = "at heads"` takes it where training is, at the mean of all heads. There all gradients point
   to where the heads are wrong for everybody, this round here and the next one there, and centroids that are a round
   old say little. The default takes it where the head is zero: then it is what somebody likes less what they do not.
2. The server never has all gradients at once: centroids go down, and each home finds its own.
3. A deserted cluster takes half of the largest: its head, and its centroid moved a little. Without this everybody stays
   in the cluster that is nearest to what all gradients have in common. Members are counted over some rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor
from torch.nn import functional

from homespun.core.errors import SettingsError
from homespun.core.messages import Broadcast, ServerState, Update
from homespun.core.method import Batch, Loss, Method, Optimizer, Phase, Predict, Sgd, Task
from homespun.core.personalize import GradientSteps
from homespun.core.roles import Role
from homespun.core.seeds import torch_generator
from homespun.core.server import ServerRule
from homespun.core.tree import Tree
from homespun.methods._wrapper import OntoSettings, underneath
from homespun.models.clustered import HEADS, MODEL, PROBE, REFERENCE, clustered, key
from homespun.models.som import somebody


class Settings(OntoSettings):
    clusters: PositiveInt | None = None
    """Clusters of users, each with a head of its own. Not set: as many as the corpus has contexts."""
    gradient: Literal["at zero", "at heads"] = "at zero"
    """Where the gradient that users are clustered by is taken: at a head of zeros, or at the mean of all heads."""


SMALL: dict[str, int] = {}
CORPUS = {"source": "digits", "users": 20}  # on which the contract is checked
RUN = {"rounds": 200, "cohort": 100}


APART = 0.01  # how far two halves of a cluster start from each other; gradients have length 1
FADES = 0.8  # how much of the members counted so far is left after a round
DESERTED = 0.05  # of an even share of the members: a cluster with fewer has none


@dataclass(frozen=True)
class LloydServer:
    """The other method's server rule for what it knows; centroids become the mean of their members.

    Members are counted by what homes tell, because under privacy, where all rows come from everybody, nothing else says
    how many there are; what is told is then clipped and noised like the gradients themselves.
    """

    rule: ServerRule

    def __call__(self, state: ServerState, update: Update) -> ServerState:
        model = self.rule(
            replace(state, keyed=_without(state.keyed, "centroids"), federated=_without(state.federated, "members")),
            replace(update, keyed=_without(update.keyed, "centroids"), federated=_without(update.federated, "members")),
        )
        rows, centroids = update.keyed["centroids"], state.keyed["centroids"]
        told = update.federated["members"]
        gaps = torch.zeros_like(centroids).index_copy_(0, rows.index, rows.values)
        least = somebody(update.noise.get("members", 0.0))
        there = told >= least
        centroids = torch.where(there[:, None], centroids + gaps / told.clamp(min=least)[:, None], centroids)
        members = FADES * state.federated["members"] + told.where(there, 0)
        source = split(members)
        members = members / torch.bincount(source, minlength=len(source)).clamp(min=1)  # halves of what was split
        apart = torch.randn(centroids.shape, generator=torch_generator(0, "clusters", state.round))
        moved = centroids[source] + APART * functional.normalize(apart, dim=1)
        same = source == torch.arange(len(source))
        heads = {name: table[source] for name, table in model.keyed.items() if name.startswith(HEADS)}
        moments = {name: value[source] if f".{HEADS}" in name else value for name, value in model.optimizer.items()}
        return replace(
            model,
            federated={**model.federated, "members": members[source]},
            keyed={**model.keyed, **heads, "centroids": torch.where(same[:, None], centroids, moved)},
            optimizer=moments,
        )


def split(members: Tensor) -> Tensor:
    """For every cluster the one it goes on from: itself, or, where it is deserted, the largest, which is split as long
    as it has twice its share."""
    members, source = members.clone(), torch.arange(len(members))
    share = float(members.sum()) / len(members)
    for empty in (members < DESERTED * share).nonzero()[:, 0].tolist():
        largest = int(members.argmax())
        if members[largest] < 2 * share:
            break
        source[empty] = largest
        members[empty] = members[largest] = members[largest] / 2
    return source


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {other: value for other, value in values.items() if other != name}


def method(settings: Settings, task: Task) -> Method:
    onto = underneath(settings, task, name="pfedkm")
    base, last = onto.method, onto.method.phases[-1]
    clusters = settings.clusters or task.contexts
    if not 1 <= clusters <= task.population:
        raise SettingsError(
            f"pfedkm: {clusters} clusters for {task.population} users. Set clusters to a number between 1 and "
            f"{task.population}."
        )
    private = [name for name in onto.private if name not in onto.head]  # a clustered head is nobody's own

    def direction(parameters: Tree) -> Tensor:
        """Of the gradient at the reference head: [..., size]."""
        axes = parameters[PROBE + key(onto.head[0])].dim() - onto.start[onto.head[0]].dim()
        flat = [-parameters[PROBE + key(name)].flatten(axes) for name in onto.head]
        return functional.normalize(torch.cat(flat, dim=-1), dim=-1)

    def nearest(parameters: Tree) -> Tensor:
        gaps = direction(parameters)[..., None, :] - parameters["centroids"]
        return gaps.square().sum(dim=-1).argmin(dim=-1)

    def columns(parameters: Tree, batch: Batch) -> Batch:
        rows = next(iter(batch.values()))
        found = nearest(parameters)[..., None]
        return {"cluster": found.expand(rows.shape[: found.dim()])}

    def release(trained: Tree, _: torch.Generator) -> Tree:
        centroids, members, own = trained["centroids"].clone(), trained["members"].clone(), nearest(trained)
        centroids[own] = direction(trained)
        members[own] += 1
        return {"centroids": centroids, "members": members}

    def renamed(loss: Loss) -> Loss:
        def outer(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
            plain = {name[len(MODEL) :]: value for name, value in parameters.items() if name.startswith(MODEL)}
            return loss(
                lambda given, rows: predict({**parameters, **{MODEL + name: given[name] for name in given}}, rows),
                plain,
                batch,
            )

        return outer

    def at_reference(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
        everybodys = {**batch, "cluster": torch.full_like(batch["cluster"], REFERENCE)}
        return renamed(base.loss)(predict, parameters, everybodys)

    def forget(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
        """Half the probe's square: a step of rate 1 makes it zero."""
        axes = parameters[PROBE + key(onto.head[0])].dim() - onto.start[onto.head[0]].dim()
        flat = [parameters[PROBE + key(name)].flatten(axes) for name in onto.head]
        half = 0.5 * torch.cat(flat, dim=-1).square().sum(dim=-1)[..., None]
        return half.expand(batch["cluster"].shape)

    probes: dict[str, Optimizer] = {PROBE + key(name): Sgd(1.0) for name in onto.head}
    look = (
        Phase(trains=probes, batch=last.batch, steps=1, loss=forget),
        Phase(trains=probes, batch=last.batch, steps=1, loss=at_reference),
    )

    def own_names(phase: Phase) -> Phase:
        return replace(
            phase,
            trains={
                (HEADS + key(name) if name in onto.head else MODEL + name): found
                for name, found in phase.trains.items()
            },
            loss=None if phase.loss is None else renamed(phase.loss),
        )

    body = [own_names(phase) for phase in onto.phases({*onto.body, *onto.head, *private})]
    at_home = [own_names(phase) for phase in onto.phases(private, at_home=True)]

    def new_private(generator: torch.Generator, broadcast: Broadcast) -> dict[str, Tensor]:
        probe = {PROBE + key(name): torch.zeros_like(onto.start[name]) for name in onto.head}
        theirs = onto.new_private(generator, broadcast, prefix=MODEL)
        return {**probe, **{name: value for name, value in theirs.items() if name[len(MODEL) :] in private}}

    return replace(
        base,
        name="pfedkm",
        version=1,
        settings=settings,
        build=lambda: clustered(base.build(), onto.head, clusters, at_zero=settings.gradient == "at zero"),
        rules=[
            *((HEADS + key(name), Role.KEYED) for name in onto.head),
            ("centroids", Role.KEYED),
            ("members", Role.FEDERATED),
            *((PROBE + key(name), Role.PRIVATE) for name in onto.head),
            *(
                (MODEL + name, Role.FROZEN if name in onto.head else role)
                for name, role in onto.partition.roles.items()
            ),
        ],
        loss=renamed(base.loss),
        phases=(*look, *body),
        personalize=GradientSteps((*look, *at_home)),
        new_private=new_private,
        columns=columns,
        release=release,
        releases=("direction of the head's gradient", "which cluster it is in"),
        server=LloydServer(base.server),
        keys={
            **{HEADS + key(name): "cluster" for name in onto.head},
            "centroids": "cluster",
            **{MODEL + name: column for name, column in base.keys.items() if name not in onto.head},
        },
        head=(),
    )
