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
| prototype embeddings (3.3.2) | `places.prototypes`, SERVER: the server trains them with users of its own |
| SOM Psi (3.3.1) | `places.map`, and `places.next`, the one that is being learned, SERVER |
| m, the mode of a sample | the column `kind` |

A round of a client (algorithm 1): move the embedding towards the prototype of what it likes, choose a head, take one
gradient of everything at the weights it was sent. The server averages the gradients and makes the step.

Deviations: see docs/methods/fedembed.md, numbered there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from homespun.core.errors import SettingsError
from homespun.core.messages import Broadcast, ServerState, Update
from homespun.core.method import ALL_EXAMPLES, Adam, Batch, LocalTraining, Method, ModelSpec, Phase, Predict, Sgd, Task
from homespun.core.personalize import GradientSteps
from homespun.core.roles import Role, Rules
from homespun.core.server import RowDenominator, ServerRule, equal_weight
from homespun.core.settings import Paper
from homespun.core.statistics import Stack, Statistic
from homespun.core.tree import Tree
from homespun.evaluation.classification import LabelScoring
from homespun.methods.preference import Common, cross_entropy, embedding_size, encode, new_embedding
from homespun.models.preference_network import CLASSES, PreferenceNetwork
from homespun.models.som import SomRule, nearest, som_statistics


class Settings(Common):
    embedding_lr: Annotated[NonNegativeFloat | None, Paper(0.001)] = None
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
    row_denominator: Annotated[RowDenominator, Paper("cohort")] = "cohort"
    """A head's gradient is averaged over the whole cohort, or over the clients that use the head."""
    upload_rows: Literal["touched", "all"] = "touched"
    """Whether a client sends the head that it uses, or zeros for the other heads too."""

    # Prototypes (3.3.2)
    margin: Annotated[NonNegativeFloat, Paper(1.0)] = 1.0
    """Margin of the triplet loss, alpha in equation 1."""
    triplet_lr: NonNegativeFloat = 0.1
    """Learning rate of the triplet loss."""
    triplet_steps: Annotated[PositiveInt, Paper(1)] = 10
    """Gradient steps on the triplet loss in a round."""

    # Map (3.3.1)
    map_step: Annotated[Literal["best", "mean"], Paper("best")] = "best"
    """What moves the map: the step of the client that fits it best, or the mean over all clients' steps."""
    map_lr: PositiveFloat = 0.5
    """Learning rate of the map."""
    map_radius: PositiveFloat = 1.0
    """Radius of a node's neighbourhood at the start."""
    map_halves: PositiveInt = 10
    """Rounds in which the radius halves."""
    map_every: PositiveInt = 10
    """Rounds until the learned map replaces the map in use."""

    # A head of one's own (assignment = "personal")
    own_lr: NonNegativeFloat = 0.03
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


# The head of a client: a function of the parameters it sees, with any leading axes.


def nearest_head(parameters: Tree, batch: Batch, *, places: str) -> Tensor:
    head = nearest(parameters["user.embedding"], parameters[places])
    return head[..., None].expand(batch["label"].shape)


# Prototypes


def triplet(predict: Predict, parameters: Tree, batch: Batch, *, kinds: int, margin: float) -> Tensor:
    """Equation 1 as a hinge, for every example that is liked, in the mean over the negative prototypes.

    Row r of the prototypes likes kind r mod `kinds`; of several such rows, the nearest one attracts.
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


@dataclass(frozen=True)
class PrototypeRule:
    """`rule` for everything clients train; the prototypes become the embeddings of the server's own users."""

    rule: ServerRule

    def __call__(self, state: ServerState, update: Update) -> ServerState:
        prototypes = update.statistics.get("places.prototypes", state.server["places.prototypes"])
        return replace(self.rule(state, update), server={"places.prototypes": prototypes})


# The method, by its way to assign heads


def method(settings: Settings, task: Task) -> Method:
    size, count = embedding_size(settings, task, method="fedembed"), settings.heads or task.contexts
    _require_sound(settings, task, count=count, size=size)
    assignment, kinds = settings.assignment, task.contexts if settings.kinds_head else 0
    personal = assignment == "personal"

    def build() -> nn.Module:
        assert task.image is not None
        places, heads = _places(settings, count=count, size=size), None if personal else count
        return PreferenceNetwork(size=task.image, embedding=size, heads=heads, kinds=kinds, common=True, places=places)

    def new_private(generator: torch.Generator, _: Broadcast) -> dict[str, Tensor]:
        embedding = new_embedding(size, settings.embedding_scale, generator)
        if not personal:
            return embedding
        inputs = PreferenceNetwork(size=task.image or (28, 28), embedding=size, heads=None).head.weight.shape[1]
        return {**embedding, "head.weight": torch.zeros(CLASSES, inputs), "head.bias": torch.zeros(CLASSES)}

    def joint_loss(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
        return loss(predict, parameters, batch, kinds=kinds, trained_by=settings.trained_by)

    embedding = Adam(_embedding_lr(settings))
    shared = {glob: Sgd(1.0) for glob in ("encoder.*", "common.*", *(["kinds.*"] if kinds else []))}
    heads = {} if personal else {"heads.*": Sgd(1.0)}
    first = _private_phases(settings, kinds=task.contexts)
    together = Phase(trains={"user.embedding": embedding, **heads, **shared}, batch=ALL_EXAMPLES, steps=1)
    at_home = Phase(trains={"user.embedding": embedding}, batch=ALL_EXAMPLES, steps=settings.personalize_steps)
    return Method(
        name="fedembed",
        version=1,
        settings=settings,
        task=task,
        model=ModelSpec(
            build=build,
            roles=_roles(settings, shared=shared),
            encode=encode,
            new_private=new_private,
            keys={} if personal else {"heads.weight": "head", "heads.bias": "head"},
            derived=_derived(assignment),
            upload_rows=settings.upload_rows,
            head=("head.*",),
            reads="images",
        ),
        local=LocalTraining(
            joint_loss, phases=(*first, together), client_weight=equal_weight, statistics=_statistics(settings)
        ),
        personalize=GradientSteps((*first, at_home, *first) if settings.personalize_steps else first),
        scoring=LabelScoring(task.classes, "f1"),
        server=_server(settings),
    )


def _places(settings: Settings, *, count: int, size: int) -> dict[str, Tensor]:
    """What the server knows of where embeddings are."""
    if settings.assignment not in ("prototype", "som"):
        return {}
    nodes = settings.embedding_scale * (2 * torch.rand(count, size) - 1)
    if settings.assignment == "prototype":
        return {"prototypes": nodes}
    radius, overlap = torch.tensor(settings.map_radius), torch.zeros(count, count)
    return {"map": nodes, "next": nodes.clone(), "overlap": overlap, "radius": radius}


def _roles(settings: Settings, *, shared: Iterable[str]) -> Rules:
    return [
        ("user.embedding", Role.PRIVATE),
        ("head.*", Role.PRIVATE) if settings.assignment == "personal" else ("heads.*", Role.KEYED),
        *((glob, Role.FEDERATED) for glob in shared),
        *([("places.*", Role.SERVER)] if settings.assignment in ("prototype", "som") else []),
    ]


def _derived(assignment: str) -> dict[str, Callable[[Tree, Batch], Tensor]]:
    """The head of a client."""
    heads: dict[str, Callable[[Tree, Batch], Tensor]] = {
        "prototype": partial(nearest_head, places="places.prototypes"),
        "som": partial(nearest_head, places="places.map"),
        "type": lambda _, batch: batch["group"],
    }
    return {} if assignment == "personal" else {"head": heads[assignment]}


def _private_phases(settings: Settings, *, kinds: int) -> tuple[Phase, ...]:
    """What a client trains before its one gradient of everything."""

    def triplet_loss(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
        return triplet(predict, parameters, batch, kinds=kinds, margin=settings.margin)

    def own_loss(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
        return cross_entropy(predict(parameters, batch)[..., :CLASSES], batch["label"])

    if settings.assignment == "prototype":
        trains = {"user.embedding": Sgd(settings.triplet_lr)}
        return (Phase(trains=trains, batch=ALL_EXAMPLES, steps=settings.triplet_steps, loss=triplet_loss),)
    if settings.assignment == "personal":
        trains = {"head.*": Sgd(settings.own_lr)}
        return (Phase(trains=trains, batch=ALL_EXAMPLES, steps=settings.own_steps, loss=own_loss),)
    return ()


def _embedding_lr(settings: Settings) -> float:
    """Prototypes must not run away from clients that are not in every round; a map needs embeddings that spread."""
    if settings.embedding_lr is not None:
        return settings.embedding_lr
    return 0.003 if settings.assignment == "prototype" else 0.05


def _statistics(settings: Settings) -> dict[str, Statistic]:
    if settings.assignment == "prototype":
        return {"places.prototypes": Stack("user.embedding")}
    return som_statistics(lr=settings.map_lr, step=settings.map_step) if settings.assignment == "som" else {}


def _server(settings: Settings) -> ServerRule:
    rule = settings.rule(settings.row_denominator)
    if settings.assignment == "prototype":
        return PrototypeRule(rule)
    if settings.assignment == "som":
        return SomRule(rule, settings.map_every, settings.map_radius, settings.map_halves)
    return rule


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
        raise SettingsError("fedembed: with assignment personal each user has a head. Leave heads out.")
    if settings.assignment == "type" and count < task.contexts:
        raise SettingsError(f"fedembed: {count} heads for {task.contexts} known sub-populations. Leave heads out.")
