"""FedEmbed: personalized private federated learning (Silva, Metcalf, Apostoloff and Theobald, 2022).

Users disagree about the same inputs, so one model cannot fit all of them. FedEmbed trains a shared encoder with one
head per sub-population k; the private embedding e_u of a user selects k:

    prediction = phi_k(theta(x, e_u), e_u)

| paper | here |
|---|---|
| e_u, personal embedding | `user.embedding`, PRIVATE |
| theta, global encoder | `encoder.*`, FEDERATED |
| phi_k, heads of the sub-populations | rows of `heads.weight` and `heads.bias`, KEYED by the column `head` |
| nu, global head | `common.*`, FEDERATED |
| gamma, k-way head | `kinds.*`, FEDERATED |
| prototype embeddings (3.3.2) | `places.prototypes`, SERVER: the server trains them with users of its own |
| SOM Psi (3.3.1) | `places.map` and, while it is learned, `places.next`, SERVER |
| m, the mode of a sample | the column `kind` |

In a round (algorithm 1) a client moves its embedding towards the prototype of what the user likes, selects a head, and
uploads one gradient of everything else at the broadcast weights. The server averages the gradients and takes the step.

Deviations and readings, numbered as in docs/methods/fedembed.md, which has the reasons and those of the experiments:
1. The embedding moves once per round, after all samples, not after every sample.
2. The server's FedAdam has learning rate 0.01, not 1.
3. Local Adam trains the embedding only, restarts every round, and has a larger learning rate than in the paper.
4. All heads train the embedding; `trained_by = "assigned"` is line 20 of algorithm 1.
5. The target of the k-way head is the kind of the sample, not the user's type.
6. Equation 1 is a hinge over all negative prototypes and liked examples only, with ten steps per round.
7. Prototypes belong to prototypical users of the server, which train like all other users.
8. The map is a line of nodes. Heads are carried over when the next map replaces the one in use.
9. A client uploads only the head that it uses, unless `upload_rows = "all"`.
16. New users train their embedding only. The paper has no new users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from homespun.core.errors import SettingsError
from homespun.core.messages import Broadcast
from homespun.core.method import ALL_EXAMPLES, Adam, Batch, LocalTraining, Method, ModelSpec, Phase, Predict, Sgd, Task
from homespun.core.personalize import GradientSteps
from homespun.core.roles import Role, Rules
from homespun.core.server import RowDenominator, ServerRule, equal_weight
from homespun.core.settings import Paper
from homespun.core.statistics import Stack, Statistic
from homespun.core.tree import Tree
from homespun.evaluation.classification import LabelScoring
from homespun.methods.preference import PreferenceSettings, cross_entropy, embedding_size, encode, new_embedding
from homespun.models.preference_network import CLASSES, PreferenceNetwork
from homespun.models.prototypes import PrototypeRule, triplet
from homespun.models.som import SomRule, nearest, som_statistics


class Settings(PreferenceSettings):
    embedding_lr: Annotated[NonNegativeFloat | None, Paper(0.001)] = None
    """Learning rate of local Adam, for the personal embedding. Not set: 0.003 with prototypes, otherwise 0.05."""
    assignment: Literal["prototype", "som", "type", "personal"] = "prototype"
    """How a user's head is chosen: the nearest prototype's, that of a self-organizing map's nearest node, that of the
    known sub-population, or a private head for each user."""
    heads: PositiveInt | None = None
    """Number of sub-populations, each with a head. Not set: the number of kinds in the corpus."""
    kinds_head: Annotated[bool, Paper(True)] = True
    """Whether there is the k-way head of section 3.1, which predicts the kind of an example."""
    trained_by: Annotated[Literal["all", "common", "assigned"], Paper("assigned")] = "all"
    """The heads whose gradients train the personal embedding: all, the global head alone, or the assigned head alone
    (as in algorithm 1, line 20)."""
    row_denominator: Annotated[RowDenominator, Paper("cohort")] = "cohort"
    """A head's gradient is averaged over the whole cohort, or over the clients that use the head."""
    upload_rows: Literal["touched", "all"] = "touched"
    """What a client uploads: the gradient of the head that it uses, or also zeros for all other heads."""

    # Prototypes (3.3.2)
    margin: Annotated[NonNegativeFloat, Paper(1.0)] = 1.0
    """Margin of the triplet loss, alpha in equation 1."""
    triplet_lr: NonNegativeFloat = 0.1
    """Learning rate of the triplet loss."""
    triplet_steps: Annotated[PositiveInt, Paper(1)] = 10
    """Gradient steps on the triplet loss in a round."""

    # Map (3.3.1)
    map_step: Annotated[Literal["best", "mean"], Paper("best")] = "best"
    """What trains the map: the step of the client that fits it best, or the mean step of all clients."""
    map_lr: PositiveFloat = 0.5
    """Learning rate of the map."""
    map_radius: PositiveFloat = 1.0
    """Initial radius of a node's neighbourhood."""
    map_halves: PositiveInt = 10
    """Number of rounds after which the radius has halved."""
    map_every: PositiveInt = 10
    """Number of rounds after which the learned map replaces the map in use."""

    # Private heads (assignment = "personal")
    own_lr: NonNegativeFloat = 0.03
    """Learning rate of a user's private head, with assignment = personal."""
    own_steps: PositiveInt = 10
    """Gradient steps on a private head in a round, with assignment = personal."""


SMALL = {"personalize_steps": 2, "own_steps": 2}
CORPUS = {"source": "digits", "users": 20}  # for the contract tests
RUN = {"rounds": 200, "cohort": 100}


# The model


def build_model(settings: Settings, task: Task) -> nn.Module:
    assert task.image is not None
    return PreferenceNetwork(
        size=task.image,
        embedding=embedding_size(settings, task, method="fedembed"),
        heads=None if settings.assignment == "personal" else _head_count(settings, task),
        kinds=_kinds(settings, task),
        common=True,
        places=_places(settings, task),
    )


def _head_count(settings: Settings, task: Task) -> int:
    return settings.heads or task.contexts


def _kinds(settings: Settings, task: Task) -> int:
    """Outputs of the k-way head; 0 if there is no such head."""
    return task.contexts if settings.kinds_head else 0


def _places(settings: Settings, task: Task) -> dict[str, Tensor]:
    """The server's prototypes or map, by which embeddings are assigned to heads."""
    if settings.assignment not in ("prototype", "som"):
        return {}
    count, size = _head_count(settings, task), embedding_size(settings, task, method="fedembed")
    nodes = settings.embedding_scale * (2 * torch.rand(count, size) - 1)
    if settings.assignment == "prototype":
        return {"prototypes": nodes}
    radius, overlap = torch.tensor(settings.map_radius), torch.zeros(count, count)
    return {"map": nodes, "next": nodes.clone(), "overlap": overlap, "radius": radius}


def nearest_head(parameters: Tree, batch: Batch, *, places: str) -> Tensor:
    """The head that a client uses, for each of its examples; any leading axes."""
    head = nearest(parameters["user.embedding"], parameters[places])
    return head[..., None].expand(batch["label"].shape)


def _derived(assignment: str) -> dict[str, Callable[[Tree, Batch], Tensor]]:
    """The column `head`, by the way in which heads are assigned."""
    heads: dict[str, Callable[[Tree, Batch], Tensor]] = {
        "prototype": partial(nearest_head, places="places.prototypes"),
        "som": partial(nearest_head, places="places.map"),
        "type": lambda _, batch: batch["group"],
    }
    return {} if assignment == "personal" else {"head": heads[assignment]}


# Roles


def _roles(settings: Settings, *, shared: Iterable[str]) -> Rules:
    return [
        ("user.embedding", Role.PRIVATE),
        ("head.*", Role.PRIVATE) if settings.assignment == "personal" else ("heads.*", Role.KEYED),
        *((glob, Role.FEDERATED) for glob in shared),
        *([("places.*", Role.SERVER)] if settings.assignment in ("prototype", "som") else []),
    ]


# Loss; the triplet loss of prototypes, equation 1, is in models/prototypes.py


def loss(predict: Predict, parameters: Tree, batch: Batch, *, kinds: int, trained_by: str) -> Tensor:
    """Sum of the losses of the assigned head, the k-way head and the global head."""
    output = detached = predict(parameters, batch)
    if trained_by != "all" and torch.is_grad_enabled():  # the other heads' gradients do not reach the embedding
        detached = predict({**parameters, "user.embedding": parameters["user.embedding"].detach()}, batch)
    assigned, common = (output if trained_by == head else detached for head in ("assigned", "common"))
    total = cross_entropy(assigned[..., :CLASSES], batch["label"])
    if kinds:
        total = total + cross_entropy(detached[..., CLASSES : CLASSES + kinds], batch["kind"])
    return total + cross_entropy(common[..., -CLASSES:], batch["label"])


# Local training


def _private_phases(settings: Settings, *, kinds: int) -> tuple[Phase, ...]:
    """What a client trains before it takes its gradient of all parameters."""

    def triplet_loss(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
        return triplet(predict, parameters, batch, kinds=kinds, margin=settings.margin)

    def private_head_loss(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
        return cross_entropy(predict(parameters, batch)[..., :CLASSES], batch["label"])

    if settings.assignment == "prototype":
        trains = {"user.embedding": Sgd(settings.triplet_lr)}
        return (Phase(trains=trains, batch=ALL_EXAMPLES, steps=settings.triplet_steps, loss=triplet_loss),)
    if settings.assignment == "personal":
        trains = {"head.*": Sgd(settings.own_lr)}
        return (Phase(trains=trains, batch=ALL_EXAMPLES, steps=settings.own_steps, loss=private_head_loss),)
    return ()


def _embedding_lr(settings: Settings) -> float:
    """Prototypes move in every round and must not outrun clients that do not; a map needs embeddings that spread."""
    if settings.embedding_lr is not None:
        return settings.embedding_lr
    return 0.003 if settings.assignment == "prototype" else 0.05


# The server


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


# The method


def method(settings: Settings, task: Task) -> Method:
    _require_consistent(settings, task)
    size, kinds = embedding_size(settings, task, method="fedembed"), _kinds(settings, task)
    personal = settings.assignment == "personal"

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
    joint = Phase(trains={"user.embedding": embedding, **heads, **shared}, batch=ALL_EXAMPLES, steps=1)
    personalization = Phase(trains={"user.embedding": embedding}, batch=ALL_EXAMPLES, steps=settings.personalize_steps)
    return Method(
        name="fedembed",
        version=1,
        settings=settings,
        task=task,
        model=ModelSpec(
            build=lambda: build_model(settings, task),
            roles=_roles(settings, shared=shared),
            encode=encode,
            new_private=new_private,
            keys={} if personal else {"heads.weight": "head", "heads.bias": "head"},
            derived=_derived(settings.assignment),
            upload_rows=settings.upload_rows,
            head=("head.*",),
            reads="images",
        ),
        local=LocalTraining(joint_loss, (*first, joint), client_weight=equal_weight, statistics=_statistics(settings)),
        personalize=GradientSteps((*first, personalization, *first) if settings.personalize_steps else first),
        scoring=LabelScoring(task.classes, "f1"),
        server=_server(settings),
    )


def _require_consistent(settings: Settings, task: Task) -> None:
    size, count = embedding_size(settings, task, method="fedembed"), _head_count(settings, task)
    if size == 0:
        raise SettingsError("fedembed: embedding_dim is 0. For no personal embeddings, use the method `preference`.")
    if task.contexts < 2:
        raise SettingsError("fedembed: the corpus needs examples of at least two kinds, given by its contexts.")
    if count > task.population and settings.assignment != "personal":
        fewer = settings.assignment == "som" or settings.heads is not None
        remedy = f"Set heads to {task.population} at most" if fewer else "Use more users"
        raise SettingsError(f"fedembed: {count} sub-populations for {task.population} users. {remedy}.")
    if settings.assignment == "prototype" and count % task.contexts:
        remedy = f"Set heads to a multiple of {task.contexts}"
        raise SettingsError(f"fedembed: {count} prototypes for {task.contexts} kinds. {remedy}.")
    if settings.assignment == "personal" and settings.heads is not None:
        raise SettingsError("fedembed: with assignment personal each user has a private head. Leave heads out.")
    if settings.assignment == "type" and count < task.contexts:
        raise SettingsError(f"fedembed: {count} heads for {task.contexts} known sub-populations. Leave heads out.")
