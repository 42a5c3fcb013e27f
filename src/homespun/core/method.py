"""What a paper adds: a model, the roles of its parameters, losses, phases, a server rule.

A method is a value. Its file exports `Settings` and `method(settings, task) -> Method`; anything that
knows the file's name, the settings and the task can build the same method again, which is how worker
processes and resumed runs get theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from homespun.core import seeds
from homespun.core.draws import KEY
from homespun.core.errors import MethodError
from homespun.core.messages import Broadcast, Elected, ServerState
from homespun.core.optimizers import Adam as Adam
from homespun.core.optimizers import AdamW as AdamW
from homespun.core.optimizers import Optimizer as Optimizer
from homespun.core.optimizers import Sgd as Sgd
from homespun.core.personalize import Personalization
from homespun.core.roles import Partition, Role, Rules, first_match, partition
from homespun.core.scoring import Scoring
from homespun.core.server import FedAvg, ServerRule
from homespun.core.settings import Settings
from homespun.core.threads import one_thread
from homespun.core.transforms import UpdateTransform
from homespun.core.tree import Tree

Batch: TypeAlias = dict[str, Tensor]  # every tensor has one row per example
Predict: TypeAlias = Callable[[Tree, Batch], Tensor]  # parameters and a batch to the model's output
Loss: TypeAlias = Callable[[Predict, Tree, Batch], Tensor]  # one value per example


@runtime_checkable
class Stackable(Protocol):
    """A model that can also train many clients at once: every parameter that is not frozen, and every column of
    the batch, has a leading client axis. Opting in is a matter of having this function."""

    def stacked(self, parameters: Tree, batch: Batch) -> Tensor: ...


WHOLE = 1_000_000  # a batch that holds everything a user has


@dataclass(frozen=True)
class Phase:
    """A stretch of local training. The optimizer starts afresh in every phase of every round.

    `trains` maps globs to optimizers, first match wins; a parameter that no glob covers stands still.
    Give `epochs` or `steps`. `proximal` is FedProx's mu: it pulls what is shared towards its broadcast
    value by adding mu/2 |w - w_broadcast|^2 to the loss. `loss` is the method's unless the phase has its own.

    `clip_norm` scales a step's gradient down to this norm, over all parameters that the phase trains of one client, as
    torch.nn.utils.clip_grad_norm_ does; FedProx's pull is part of it. That is for stable training, not for privacy.
    """

    trains: Mapping[str, Optimizer]
    batch: int
    epochs: int | None = None
    steps: int | None = None
    proximal: float = 0.0
    loss: Loss | None = None
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise MethodError(f"a phase has either epochs or steps, got epochs={self.epochs}, steps={self.steps}")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise MethodError(f"a phase's clip_norm is above 0, got {self.clip_norm}. Leave it out to clip nothing.")

    def optimizer_of(self, name: str) -> Optimizer | None:
        pattern = first_match(name, self.trains)
        return None if pattern is None else self.trains[pattern]


@dataclass(frozen=True)
class Task:
    """What a method needs to know of the data before it sees any."""

    classes: int = 0
    population: int = 0
    contexts: int = 0
    image: tuple[int, int] | None = None  # height and width, where examples are images

    def __post_init__(self) -> None:
        if self.image is not None:  # JSON, which carries a task to the workers, knows lists only
            height, width = self.image
            object.__setattr__(self, "image", (height, width))


@dataclass(frozen=True)
class Window:
    """How much of a text a method reads; what is beyond is cut."""

    setting: str  # the setting that says so, as a user gives it
    length: int
    unit: str  # characters, tokens
    sizes: Callable[[Sequence[str]], Sequence[int]]  # how long texts are in this unit, uncut


@dataclass(frozen=True)
class Artefact:
    """Something that was made once and is used by runs: a base model, for instance. Its fingerprint is part of a run's
    identity; its name says where it is on this machine."""

    setting: str  # the method's setting that names it
    name: str
    fingerprint: str
    kind: str = "base model"


@dataclass(frozen=True)
class MethodFile:
    """A file outside the package that a method is made of, as it ran."""

    path: str  # the whole path
    sha256: str  # of the file's bytes
    source: str


@dataclass(frozen=True)
class Method:
    name: str
    version: int  # rises when numbers may change
    settings: Settings
    task: Task
    build: Callable[[], nn.Module]
    rules: Rules
    encode: Callable[[Any], Batch]  # a federation's examples to tensors
    loss: Loss
    phases: tuple[Phase, ...]
    personalize: Personalization  # at home, after training; nothing is sent
    scoring: Scoring  # what evaluation means
    # What a home tells of itself on purpose, after a round's training: new values for federated parameters, which
    # the update carries like any other. `releases` names it for people.
    release: Callable[[Tree, torch.Generator], Tree] | None = None
    releases: tuple[str, ...] = ()
    # What a home works out of the parameters it sees and adds to its examples as columns, before every phase and
    # before predicting: which head is its own, for instance. Any leading axes.
    columns: Callable[[Tree, Batch], Batch] | None = None
    # What each home puts up for election: a score, and steps for federated parameters. Of a cohort's the best-scoring
    # one reaches the server rule, with its score.
    elects: Callable[[Tree], Elected] | None = None
    candidates: tuple[str, ...] = ()  # what those steps are for; a score is at most 0
    # The federated table whose rows are the embeddings of prototypical users, whom the server itself holds and trains
    # beside every round; and the private parameter they are.
    prototypes: tuple[str, str] | None = None
    # Where a new user begins, from what the server sends.
    new_private: Callable[[torch.Generator, Broadcast], dict[str, Tensor]] = field(default=lambda *_: {})
    # Private parameters may differ from user to user: any names that a rule calls private, in any shape.
    private_varies: bool = False
    server: ServerRule = field(default_factory=FedAvg)
    transforms: tuple[UpdateTransform, ...] = ()  # what is done to updates on their way, beside the run's own
    weight: Callable[[int], float] = float  # a client's weight from its number of examples
    share: str | None = None  # the batch column with an example's share in its batch's mean; None: equal shares
    # What a home keeps of its private delta: all of it (FURL's equation 7), or the share its update has
    # in the cohort's average (equation 6).
    keeps: Literal["all", "share"] = "all"
    keys: Mapping[str, str] = field(default_factory=dict)  # keyed parameter -> the batch column that names its rows
    sends: Literal["touched", "all"] = "touched"  # rows of a keyed parameter; all: zeros for those not touched
    head: tuple[str, ...] = ()  # globs of the last layer, for methods that give everybody one of their own
    reads: Literal["texts", "images"] = "texts"
    window: Window | None = None  # how much of a text is read; None: all of it
    artefacts: tuple[Artefact, ...] = ()  # what was made before and is used here, such as a base model
    stochastic: bool = False  # the loss draws random numbers: training batches have a column `key` (core/draws.py)
    pooled: bool = False  # central training: one holder has everybody's examples
    origin: str = ""  # the module or file this method came from
    files: tuple[MethodFile, ...] = ()  # the files outside the package it is made of, as they ran

    @property
    def base_model(self) -> Artefact | None:
        """The pre-trained language model underneath, if there is one."""
        return next((one for one in self.artefacts if one.kind == "base model"), None)

    # What clients release beside parameter updates; the weight says how many examples a client has.
    statistics: ClassVar[tuple[str, ...]] = ("loss", "examples")


@dataclass(frozen=True)
class Built:
    """A method with its model in memory and every parameter in its role."""

    method: Method
    model: nn.Module
    partition: Partition
    initial: Mapping[str, Tensor]  # every parameter as built; the frozen ones are the model's own
    device: str = "cpu"  # where the model and `initial` are; an engine may place them elsewhere

    def start(self) -> ServerState:
        """The server's state before the first round."""
        return ServerState(
            round=0,
            federated=self.partition.select(self.initial, Role.FEDERATED),
            keyed=self.partition.select(self.initial, Role.KEYED),
        )

    def count(self, role: Role) -> int:
        """How many numbers have this role."""
        return sum(self.initial[name].numel() for name in self.partition.names(role))

    def parameters(self, broadcast: Broadcast, private: Tree) -> dict[str, Tensor]:
        """All parameters as one client sees them."""
        frozen = self.partition.select(self.initial, Role.FROZEN)
        return {**frozen, **broadcast.federated, **broadcast.keyed, **private}

    def new_private(self, user: str, *, seed: int, broadcast: Broadcast | None = None) -> dict[str, Tensor]:
        """The private parameters of somebody seen for the first time; without a broadcast, before the first round."""
        broadcast = broadcast or self.start().broadcast()
        private = self.method.new_private(seeds.torch_generator(seed, "private", user), broadcast)
        expected = set(self.partition.names(Role.PRIVATE))
        varies = self.method.private_varies and all(self.partition.role_of(one) is Role.PRIVATE for one in private)
        if set(private) != expected and not varies:
            raise MethodError(
                f"{self.method.name}: new_private made {sorted(private)}, the rules say {sorted(expected)}"
            )
        return private


@one_thread()
def build(method: Method, *, seed: int) -> Built:
    """Build the model from the run's seed and check that its roles are total and exclusive."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds.derive(seed, "initial parameters") >> 1)
        model = method.build()
    model.requires_grad_(False)
    named = dict(model.named_parameters())
    parts = partition(named, method.rules, method=method.name, private_varies=method.private_varies)
    _require_sound_phases(method, parts)
    # A frozen parameter may be most of a language model: it is not held twice.
    initial = {
        name: value.detach() if parts.roles[name] is Role.FROZEN else value.detach().clone()
        for name, value in named.items()
    }
    return Built(method, model, parts, initial)


def _require_sound_phases(method: Method, parts: Partition) -> None:
    for phase in (*method.phases, *method.personalize.phases):
        idle = [glob for glob in phase.trains if not any(first_match(name, [glob]) for name in parts.roles)]
        if idle:
            raise MethodError(f"{method.name}: a phase trains {idle}, which covers no parameter")
        frozen = [name for name in parts.names(Role.FROZEN) if phase.optimizer_of(name)]
        if frozen:
            raise MethodError(f"{method.name}: a phase trains {frozen}, which the rules call frozen")
    if method.stochastic and KEY in method.keys.values():
        raise MethodError(f"{method.name}: the column {KEY!r} is that of random draws, and cannot name rows as well")
    if set(method.keys) != set(parts.names(Role.KEYED)):
        raise MethodError(
            f"{method.name}: keys name {sorted(method.keys)}, the rules say {sorted(parts.names(Role.KEYED))}"
        )


def optimizers(phase: Phase, names: Sequence[str]) -> dict[str, Optimizer]:
    """The parameters this phase trains, each with its optimizer."""
    found = {name: phase.optimizer_of(name) for name in names}
    return {name: optimizer for name, optimizer in found.items() if optimizer is not None}
