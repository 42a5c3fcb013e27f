"""FedEmbed: personalized private federated learning (Silva, Metcalf, Apostoloff and Theobald, 2022).

Where people disagree about the same thing, one model cannot please them all. FedEmbed gives every sub-population a head
of its own over a common encoder, and finds out who belongs where from personal embeddings that never leave home.

| paper | here |
|---|---|
| e_u, personal embedding | `user.embedding`, PRIVATE |
| theta, global encoder | `encoder.*`, FEDERATED |
| phi_k, heads of the sub-populations | rows of `heads.weight` and `heads.bias`, KEYED by the column `head` |
| nu, global head | `common.*`, FEDERATED |
| gamma, k-way head | `kinds.*`, FEDERATED |
| prototype embeddings (3.3.2) | `places.prototypes`; the server trains them with users of its own |
| SOM Psi (3.3.1) | `places.map`, and `places.next`, the one that is being learned |
| m, the mode of a sample | the column `kind` |

A round of a client (algorithm 1): move the embedding towards the prototype of what it likes, choose a head, take one
gradient of everything at the weights it was sent. The server averages the gradients and makes the step.

Deviations: see docs/methods/fedembed.md, numbered there.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from homespun.core.errors import SettingsError
from homespun.core.messages import Broadcast, Elected
from homespun.core.method import WHOLE, Adam, Batch, Method, Optimizer, Phase, Predict, Sgd, Task
from homespun.core.personalize import GradientSteps
from homespun.core.roles import Role, Rules
from homespun.core.server import Denominator, server_rule
from homespun.core.settings import Paper
from homespun.core.tree import Tree
from homespun.evaluation.classification import LabelScoring
from homespun.methods.preference import Common, cross_entropy, embedding_size, encode, new_embedding
from homespun.models.preference_network import CLASSES, PreferenceNetwork
from homespun.models.som import MapServer, map_step, nearest


class Settings(Common):
    embedding_rate: Annotated[NonNegativeFloat | None, Paper(0.001)] = None
    """Learning rate of local Adam, for the personal embedding. Not set: 0.003 with prototypes, otherwise 0.05."""
    assignment: Literal["prototype", "som", "type", "personal"] = "prototype"
    """How a user gets a head: by the nearest prototype, by a self-organizing map, by the known sub-population, or one
    of their own."""
    heads: PositiveInt | None = None
    """Sub-populations, each with a head. Not set: as many as the corpus has kinds."""
    kinds_head: Annotated[bool, Paper(True)] = True
    """Whether the k-way head of section 3.1 predicts the kind of an example."""
    trained_by: Annotated[Literal["all", "common", "assigned"], Paper("assigned")] = "all"
    """The heads whose gradients move the personal embedding: all, the global head alone, or the assigned head alone
    (algorithm 1, line 20, as written)."""
    over: Annotated[Denominator, Paper("cohort")] = "cohort"
    """A head's gradient is averaged over the whole cohort, or over the clients that use the head."""
    sends: Literal["touched", "all"] = "touched"
    """Whether a client sends the head that it uses, or zeros for the other heads too."""

    # Prototypes (3.3.2)
    margin: Annotated[NonNegativeFloat, Paper(1.0)] = 1.0
    """Margin of the triplet loss, alpha in equation 1."""
    triplet_rate: NonNegativeFloat = 0.1
    """Learning rate of the triplet loss."""
    triplet_steps: Annotated[PositiveInt, Paper(1)] = 10
    """Gradient steps on the triplet loss in a round."""

    # Map (3.3.1)
    map_step: Annotated[Literal["best", "mean"], Paper("best")] = "best"
    """What moves the map: the step of the client that fits it best, or the mean over all clients' steps."""
    map_rate: PositiveFloat = 0.5
    """Learning rate of the map."""
    map_radius: PositiveFloat = 1.0
    """Radius of a node's neighbourhood at the start."""
    map_halves: PositiveInt = 10
    """Rounds in which the radius halves."""
    map_every: PositiveInt = 10
    """Rounds until the learned map replaces the map in use."""

    # A head of one's own (assignment = "personal")
    own_rate: NonNegativeFloat = 0.03
    """Learning rate of a user's own head, with assignment = personal."""
    own_steps: PositiveInt = 10
    """Gradient steps on that head in a round."""


SMALL = {"personalize_steps": 2, "own_steps": 2}
CORPUS = {"source": "digits", "users": 20}  # on which the contract is checked
RUN = {"rounds": 200, "cohort": 100}


def loss(predict: Predict, parameters: Tree, batch: Batch, *, kinds: int, trained_by: str) -> Tensor:
    """The assigned head, the k-way head and the global head together."""
    output = still = predict(parameters, batch)
    if trained_by != "all" and torch.is_grad_enabled():  # the other heads' gradients do not reach the embedding
        still = predict({**parameters, "user.embedding": parameters["user.embedding"].detach()}, batch)
    assigned, common = (output if trained_by == head else still for head in ("assigned", "common"))
    total = cross_entropy(assigned[..., :CLASSES], batch["label"])
    if kinds:
        total = total + cross_entropy(still[..., CLASSES : CLASSES + kinds], batch["kind"])
    return total + cross_entropy(common[..., -CLASSES:], batch["label"])


# Which head: functions of the parameters that a home sees, with any leading axes.


def nearest_head(parameters: Tree, batch: Batch, *, places: str) -> Batch:
    head = nearest(parameters["user.embedding"], parameters[places])
    return {"head": head[..., None].expand(batch["label"].shape)}


# Prototypes


def triplet(predict: Predict, parameters: Tree, batch: Batch, *, kinds: int, margin: float) -> Tensor:
    """Equation 1 as a hinge, for every example that is liked, in the mean over the negative prototypes.

    Row r of the prototypes is somebody who likes kind r mod `kinds`; of several, the nearest one attracts.
    """
    embedding, prototypes = parameters["user.embedding"], parameters["places.prototypes"]
    distance = (embedding[..., None, :] - prototypes).square().sum(dim=-1)  # [..., prototypes]
    likes = torch.arange(prototypes.shape[-2], device=prototypes.device) % kinds
    positive = batch["kind"][..., None] == likes  # [..., examples, prototypes]
    far = distance[..., None, :].expand(positive.shape)
    attracts = far.masked_fill(~positive, torch.inf).min(dim=-1, keepdim=True).values
    hinge = (attracts - far + margin).clamp(min=0).masked_fill(positive, 0)
    mean = hinge.sum(dim=-1) / (~positive).sum(dim=-1).clamp(min=1)
    return mean * batch["label"]


# Map: a line of nodes


def stand_for_election(trained: Tree, *, rate: float) -> Elected:
    """This home's step and how well the map already knows it."""
    embedding, nodes = trained["user.embedding"], trained["places.next"]
    step = map_step(embedding, nodes, radius=trained["places.radius"], rate=rate)
    return Elected(-float((embedding - nodes).square().sum(dim=1).min().sqrt()), {"places.next": step})


def tell_places(trained: Tree, _: torch.Generator, *, rate: float, with_step: bool) -> Tree:
    """Where this home is on the old map and on the new one and, if everybody's step counts, its step."""
    embedding = trained["user.embedding"]
    overlap = torch.zeros_like(trained["places.overlap"])
    overlap[nearest(embedding, trained["places.map"]), nearest(embedding, trained["places.next"])] = 1
    told = {"places.overlap": trained["places.overlap"] + overlap}
    if with_step:
        nodes = trained["places.next"]
        told["places.next"] = nodes + map_step(embedding, nodes, radius=trained["places.radius"], rate=rate)
    return told


def _told(best: bool) -> tuple[str, str]:
    return "a step of the map" + (" and its score" if best else ""), "place on the old and the new map"


def method(settings: Settings, task: Task) -> Method:
    size, kinds = embedding_size(settings, task, method="fedembed"), task.contexts
    assignment = settings.assignment
    count = settings.heads or kinds
    _require_sound(settings, task, count=count, size=size)
    told_kinds = kinds if settings.kinds_head else 0

    def places() -> dict[str, Tensor]:
        if assignment == "prototype":
            return {"prototypes": settings.embedding_scale * (2 * torch.rand(count, size) - 1)}
        if assignment == "som":
            nodes = settings.embedding_scale * (2 * torch.rand(count, size) - 1)
            radius, overlap = torch.tensor(settings.map_radius), torch.zeros(count, count)
            return {"map": nodes, "next": nodes.clone(), "overlap": overlap, "radius": radius}
        return {}

    def build() -> nn.Module:
        assert task.image is not None
        heads = None if assignment == "personal" else count
        return PreferenceNetwork(
            size=task.image, embedding=size, heads=heads, kinds=told_kinds, common=True, places=places()
        )

    def columns(parameters: Tree, batch: Batch) -> Batch:
        if assignment == "type":
            return {"head": batch["group"]}
        return nearest_head(
            parameters, batch, places="places.prototypes" if assignment == "prototype" else "places.map"
        )

    def new_private(generator: torch.Generator, _: Broadcast) -> dict[str, Tensor]:
        if assignment != "personal":
            return new_embedding(size, settings.embedding_scale, generator)
        inputs = PreferenceNetwork(size=task.image or (28, 28), embedding=size, heads=None).head.weight.shape[1]
        zeros = {"head.weight": torch.zeros(CLASSES, inputs), "head.bias": torch.zeros(CLASSES)}
        return {**new_embedding(size, settings.embedding_scale, generator), **zeros}

    def joint_loss(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
        return loss(predict, parameters, batch, kinds=told_kinds, trained_by=settings.trained_by)

    def own_loss(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
        return cross_entropy(predict(parameters, batch)[..., :CLASSES], batch["label"])

    def triplet_loss(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
        return triplet(predict, parameters, batch, kinds=kinds, margin=settings.margin)

    # Prototypes must not run away from those who are not there every round; a map needs embeddings that spread.
    rate = settings.embedding_rate
    if rate is None:
        rate = 0.003 if assignment == "prototype" else 0.05
    embedding: dict[str, Optimizer] = {"user.embedding": Adam(rate)}
    shared = {glob: Sgd(1.0) for glob in ("encoder.*", "common.*", *(["kinds.*"] if told_kinds else []))}
    towards = Phase(
        trains={"user.embedding": Sgd(settings.triplet_rate)},
        batch=WHOLE,
        steps=settings.triplet_steps,
        loss=triplet_loss,
    )
    own = Phase(trains={"head.*": Sgd(settings.own_rate)}, batch=WHOLE, steps=settings.own_steps, loss=own_loss)
    first = {"prototype": (towards,), "personal": (own,)}.get(assignment, ())
    heads = {} if assignment == "personal" else {"heads.*": Sgd(1.0)}
    at_home = Phase(trains=embedding, batch=WHOLE, steps=settings.personalize_steps)
    private = [("user.embedding", Role.PRIVATE)]
    rules: Rules = [
        *private,
        *([("head.*", Role.PRIVATE)] if assignment == "personal" else [("heads.*", Role.KEYED)]),
        *((glob, Role.FEDERATED) for glob in shared),
        *([("places.*", Role.FEDERATED)] if assignment in ("prototype", "som") else []),
    ]
    rule = server_rule(settings.server, rate=settings.server_rate, over=settings.over)
    maps = assignment == "som"
    best = settings.map_step == "best"
    return Method(
        name="fedembed",
        version=1,
        settings=settings,
        task=task,
        build=build,
        rules=rules,
        encode=encode,
        loss=joint_loss,
        phases=(*first, Phase(trains={**embedding, **heads, **shared}, batch=WHOLE, steps=1)),
        personalize=GradientSteps((*first, at_home, *first) if settings.personalize_steps else first),
        columns=None if assignment == "personal" else columns,
        new_private=new_private,
        server=MapServer(rule, settings.map_every, settings.map_radius, settings.map_halves) if maps else rule,
        weight=lambda examples: float(examples > 0),
        keys={} if assignment == "personal" else {"heads.weight": "head", "heads.bias": "head"},
        sends=settings.sends,
        prototypes=("places.prototypes", "user.embedding") if assignment == "prototype" else None,
        elects=(lambda trained: stand_for_election(trained, rate=settings.map_rate)) if maps and best else None,
        candidates=("places.next",) if maps and best else (),
        release=(
            (lambda trained, draw: tell_places(trained, draw, rate=settings.map_rate, with_step=not best))
            if maps
            else None
        ),
        releases=_told(best) if maps else (),
        head=("head.*",),
        scoring=LabelScoring(task.classes, "f1"),
        reads="images",
    )


def _require_sound(settings: Settings, task: Task, *, count: int, size: int) -> None:
    if size == 0:
        raise SettingsError("fedembed: embedding_dim is 0. Without personal embeddings it is the method `preference`.")
    if task.contexts < 2:
        raise SettingsError("fedembed: the corpus needs examples of at least two kinds, named by its contexts.")
    if count > task.population and settings.assignment != "personal":
        fewer = settings.assignment == "som" or settings.heads is not None
        way_out = f"Set heads to {task.population} at most" if fewer else "Take more users"
        raise SettingsError(f"fedembed: {count} sub-populations for {task.population} users. {way_out}.")
    if settings.assignment == "prototype" and count % task.contexts:
        raise SettingsError(
            f"fedembed: {count} prototypes for {task.contexts} kinds. Every kind has equally many: set heads to a "
            f"multiple of {task.contexts}."
        )
    if settings.assignment == "personal" and settings.heads is not None:
        raise SettingsError("fedembed: with assignment personal everybody has a head of their own. Leave heads out.")
    if settings.assignment == "type" and count < task.contexts:
        raise SettingsError(f"fedembed: {count} heads for {task.contexts} known sub-populations. Leave heads out.")
