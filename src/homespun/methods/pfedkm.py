"""PFedKM, as FedEmbed compares itself with it (Silva et al., 2022, table 1; after Tang, Guo and Guo, 2021).

"A shared feature encoder with sub-population model heads assigned by K-means clustering over user gradients."

In a round a client takes the gradient of a reference head on its own examples, finds the centroid nearest to the
direction of the gradient, and trains the encoder and that cluster's head. It also uploads the step from its centroid to
the direction:

    centroid_k <- centroid_k + mean over members (direction_i - centroid_k)

is one Lloyd step of k-means. The network is that of any method: `base_method` names it, and `head` the parameters that
each cluster has its own copy of.

| paper | here |
|---|---|
| heads of the sub-populations | rows of `heads.*`, KEYED by the column `cluster` |
| k-means' centroids | `centroids`, SERVER |
| a user's gradient | `user.gradient`, PRIVATE; its direction is disclosed, as the statistic `centroids` |

Deviations and readings (14 in docs/methods/fedembed.md):
1. FedEmbed clusters the gradient of the whole network, which it calls impractically slow; here it is the gradient of
   the head, scaled to length 1. `gradient = "at heads"` takes it at the mean of all heads. There all gradients point to
   what the heads get wrong for all users. That changes from round to round, so centroids are outdated after a round.
   The default takes it at a head of zeros, where it is what a user likes minus what the user dislikes.
2. The server never has all gradients at once: it broadcasts the centroids, and each client finds its own.
3. A deserted cluster takes over half of the largest one: a copy of its head, and its centroid moved a little. Otherwise
   all users stay in the cluster nearest to what all gradients have in common. Members are counted over several rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor
from torch.nn import functional

from homespun.core.errors import SettingsError
from homespun.core.messages import Broadcast, ServerState, Update
from homespun.core.method import Assign, Batch, LocalView, Loss, Method, Phase, Predict, Task
from homespun.core.personalize import GradientSteps
from homespun.core.roles import Role
from homespun.core.seeds import torch_generator
from homespun.core.server import ServerRule
from homespun.core.statistics import Statistic, Sum
from homespun.core.tree import Tree
from homespun.methods._wrapper import BaseMethod, WrapperSettings, load_base, words_only
from homespun.models.clustered import HEADS, MODEL, clustered, key
from homespun.models.som import nearest, smallest_count


class Settings(WrapperSettings):
    clusters: PositiveInt | None = None
    """Clusters of users, each with its own head. Not set: as many as the corpus has contexts."""
    gradient: Literal["at zero", "at heads"] = "at zero"
    """Where the gradient that users are clustered by is taken: at a head of zeros, or at the mean of all heads."""


SMALL: dict[str, int] = {}
CORPUS = {"source": "digits", "users": 20}  # for the contract tests
RUN = {"rounds": 200, "cohort": 100}


SPLIT_DISTANCE = 0.01  # from the centroid of a cluster to its copy; gradients have length 1
COUNT_DECAY = 0.8  # factor on the members counted so far, in every round
DESERTED = 0.05  # a cluster with less than this share of the mean number of members counts as deserted


# On the client


def assign_gradient(base: BaseMethod, loss: Loss, *, at_zero: bool) -> Assign:
    """The gradient of a reference head, over all examples of a client."""

    def gradient(view: LocalView) -> Tree:
        axes = view.batch["cluster"].dim() - 1  # number of leading axes
        tables = {HEADS + key(name): view.parameters[HEADS + key(name)] for name in base.head}
        reference = {
            name: (torch.zeros_like(table.select(axes, 0)) if at_zero else table.mean(dim=axes)).requires_grad_()
            for name, table in tables.items()
        }
        with torch.enable_grad():
            heads = {name: value.unsqueeze(axes).expand(tables[name].shape) for name, value in reference.items()}
            losses = loss(view.predict, {**view.parameters, **heads}, view.batch)
            gradients = torch.autograd.grad(view.mean(losses).sum(), list(reference.values()))
        return {"user.gradient": torch.cat([one.flatten(axes) for one in gradients], dim=-1)}

    return Assign(("user.gradient",), gradient)


def direction(parameters: Tree) -> Tensor:
    """The gradient of a client, scaled to length 1."""
    return functional.normalize(parameters["user.gradient"], dim=-1)


def own_cluster(parameters: Tree, batch: Batch) -> Tensor:
    """The cluster of a client, for each of its examples; any leading axes."""
    rows = next(iter(batch.values()))
    cluster = nearest(direction(parameters), parameters["centroids"])[..., None]
    return cluster.expand(rows.shape[: cluster.dim()])


def centroid_step(trained: Tree, _: torch.Generator) -> Tensor:
    """The step from the client's centroid to its direction; zero for all other centroids."""
    centroids, own = trained["centroids"], nearest(direction(trained), trained["centroids"])
    step = torch.zeros_like(centroids)
    step[own] = direction(trained) - centroids[own]
    return step


def membership(trained: Tree, _: torch.Generator) -> Tensor:
    """The client's cluster, one-hot."""
    member = torch.zeros_like(trained["members"])
    member[nearest(direction(trained), trained["centroids"])] = 1
    return member


STATISTICS: dict[str, Statistic] = {
    "centroids": Sum(centroid_step, "direction of the head's gradient"),
    "members": Sum(membership, "which cluster it is in"),
}


# On the server


@dataclass(frozen=True)
class LloydRule:
    """`rule` for all parameters that clients train; centroids become the mean of their members.

    Members are counted by a statistic. Under differential privacy all clients upload all rows, so there is no other
    count of the members; the statistic is then clipped and noised like the gradients.
    """

    rule: ServerRule

    def __call__(self, state: ServerState, update: Update) -> ServerState:
        model, centroids, counted = self.rule(state, update), state.server["centroids"], update.statistics["members"]
        least = smallest_count(update.noise.get("members", 0.0))
        present = counted >= least
        moved = centroids + update.statistics["centroids"] / counted.clamp(min=least)[:, None]
        centroids = torch.where(present[:, None], moved, centroids)
        members = COUNT_DECAY * state.server["members"] + counted.where(present, 0)
        source = split(members)
        members = members / torch.bincount(source, minlength=len(source)).clamp(min=1)  # a split cluster's are halved
        offsets = torch.randn(centroids.shape, generator=torch_generator(0, "clusters", state.round))
        copies = centroids[source] + SPLIT_DISTANCE * functional.normalize(offsets, dim=1)
        unchanged = source == torch.arange(len(source))
        heads = {name: table[source] for name, table in model.keyed.items() if name.startswith(HEADS)}
        moments = {name: value[source] if f".{HEADS}" in name else value for name, value in model.optimizer.items()}
        return replace(
            model,
            keyed={**model.keyed, **heads},
            optimizer=moments,
            server={"centroids": torch.where(unchanged[:, None], centroids, copies), "members": members[source]},
        )


def split(members: Tensor) -> Tensor:
    """For every cluster the one that it continues: itself or, if it is deserted, the largest one, which is split as
    long as it has at least twice the mean number of members."""
    members, source = members.clone(), torch.arange(len(members))
    share = float(members.sum()) / len(members)
    for empty in (members < DESERTED * share).nonzero()[:, 0].tolist():
        largest = int(members.argmax())
        if members[largest] < 2 * share:
            break
        source[empty] = largest
        members[empty] = members[largest] = members[largest] / 2
    return source


# The method


def method(settings: Settings, task: Task) -> Method:
    base = load_base(settings, task, name="pfedkm")
    clusters = settings.clusters or task.contexts
    if not 1 <= clusters <= task.population:
        raise SettingsError(
            f"pfedkm: {clusters} clusters for {task.population} users. Set clusters to a number between 1 and "
            f"{task.population}."
        )
    private = [name for name in base.private if name not in base.head]  # a clustered head belongs to no single user
    loss = rename_loss(base.local.loss)
    find_direction = assign_gradient(base, loss, at_zero=settings.gradient == "at zero")
    body = [rename_phase(phase, base) for phase in base.phases({*base.body, *base.head, *private})]
    personalization = [rename_phase(phase, base) for phase in base.phases(private, personalization=True)]
    size = sum(base.start[name].numel() for name in base.head)

    def new_private(generator: torch.Generator, broadcast: Broadcast) -> dict[str, Tensor]:
        of_base = base.new_private(generator, broadcast, prefix=MODEL)
        still_private = {name: value for name, value in of_base.items() if name[len(MODEL) :] in private}
        return {"user.gradient": torch.zeros(size), **still_private}

    return replace(
        base.method,
        name="pfedkm",
        version=2,
        settings=settings,
        model=replace(
            base.model,
            build=lambda: clustered(base.model.build(), base.head, clusters),
            roles=[
                *((HEADS + key(name), Role.KEYED) for name in base.head),
                ("centroids", Role.SERVER),
                ("members", Role.SERVER),
                ("user.gradient", Role.PRIVATE),
                *(
                    (MODEL + name, Role.FROZEN if name in base.head else role)
                    for name, role in base.partition.roles.items()
                ),
            ],
            new_private=new_private,
            keys={
                **{HEADS + key(name): "cluster" for name in base.head},
                **{MODEL + name: column for name, column in base.model.keys.items() if name not in base.head},
            },
            derived={"cluster": own_cluster},
            head=(),
        ),
        local=replace(base.local, loss=loss, phases=(find_direction, *body), statistics=STATISTICS),
        scoring=words_only(base.method.scoring),
        personalize=GradientSteps((find_direction, *personalization)),
        server=LloydRule(base.method.server),
    )


# The base method's parameters have a prefix in this network


def rename_loss(loss: Loss) -> Loss:
    def renamed(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
        plain = {name[len(MODEL) :]: value for name, value in parameters.items() if name.startswith(MODEL)}
        return loss(
            lambda given, rows: predict({**parameters, **{MODEL + name: given[name] for name in given}}, rows),
            plain,
            batch,
        )

    return renamed


def rename_phase(phase: Phase, base: BaseMethod) -> Phase:
    return replace(
        phase,
        trains={
            (HEADS + key(name) if name in base.head else MODEL + name): optimizer
            for name, optimizer in phase.trains.items()
        },
        loss=None if phase.loss is None else rename_loss(phase.loss),
    )
