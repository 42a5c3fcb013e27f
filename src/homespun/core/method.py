"""What a paper adds: a model, the roles of its parameters, losses, phases, a server rule.

A method is a value. Its file exports `Settings` and `method(settings, task) -> Method`; anything that
knows the file's name, the settings and the task can build the same method again, which is how worker
processes and resumed runs get theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from homespun.core import seeds
from homespun.core.draws import KEY
from homespun.core.errors import MethodError, raise_faults
from homespun.core.messages import Broadcast, ServerState
from homespun.core.optimizers import Adam as Adam
from homespun.core.optimizers import AdamW as AdamW
from homespun.core.optimizers import Optimizer as Optimizer
from homespun.core.optimizers import Sgd as Sgd
from homespun.core.personalize import Personalization
from homespun.core.roles import Partition, Role, Rules, first_match, partition
from homespun.core.scoring import Scoring
from homespun.core.server import FedAvg, ServerRule
from homespun.core.settings import Settings
from homespun.core.statistics import Statistics
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


WHOLE = 1_000_000  # a batch that holds all examples of a user


@dataclass(frozen=True)
class Phase:
    """A stretch of local training by gradient steps. Each phase of each round starts with a fresh optimizer.

    `trains` maps globs to optimizers, first match wins; a parameter that no glob covers does not change.
    Give `epochs` or `steps`. `mu` is FedProx's: it pulls what is shared towards its broadcast value by adding
    mu/2 |w - w_broadcast|^2 to the loss. `loss` replaces the method's.

    `clip_norm` scales a step's gradient down to this norm, over all parameters that the phase trains of one client, as
    torch.nn.utils.clip_grad_norm_ does; FedProx's pull is part of it. That is for stable training, not for privacy.

    Example:
        >>> Phase(trains={"output.*": Sgd(0.1)}, batch=8, epochs=1).optimizer_of("output.bias")
        Sgd(lr=0.1, momentum=0.0, weight_decay=0.0)
    """

    trains: Mapping[str, Optimizer]
    batch: int
    epochs: int | None = None
    steps: int | None = None
    mu: float = 0.0
    loss: Loss | None = None
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise MethodError(f"a phase has either epochs or steps, got epochs={self.epochs}, steps={self.steps}")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise MethodError(f"clip_norm must be above 0, got {self.clip_norm}. Leave it out to clip nothing.")

    def optimizer_of(self, name: str) -> Optimizer | None:
        pattern = first_match(name, self.trains)
        return None if pattern is None else self.trains[pattern]


@dataclass(frozen=True)
class LocalView:
    """What a client sees when it computes private parameters: with many clients at once, everything but frozen
    parameters has a leading client axis."""

    predict: Predict
    parameters: Tree
    batch: Batch  # all examples of the client
    mean: Callable[[Tensor], Tensor]  # of one value per example, weighted as in training: [..., examples] -> [...]


@dataclass(frozen=True)
class Assign:
    """A local step that is not a gradient step: new values of private parameters, computed from all examples of a
    client. PFedKM's direction of a user's gradient, for instance."""

    names: tuple[str, ...]
    compute: Callable[[LocalView], Tree]
    trains: ClassVar[Mapping[str, Optimizer]] = MappingProxyType({})


LocalPhase: TypeAlias = Phase | Assign


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


def no_private(generator: torch.Generator, broadcast: Broadcast) -> dict[str, Tensor]:
    """The start of a user who has nothing private."""
    return {}


@dataclass(frozen=True)
class ModelSpec:
    """The network, the roles of its parameters, and what it reads."""

    build: Callable[[], nn.Module]
    roles: Rules  # globs to roles, first match wins
    encode: Callable[[Any], Batch]  # a federation's examples to tensors
    # Where a new user starts, from what the server sends.
    new_private: Callable[[torch.Generator, Broadcast], dict[str, Tensor]] = no_private
    # Private parameters may differ from user to user: any names that a rule calls private, in any shape.
    private_varies: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)  # keyed parameter -> the batch column that names its rows
    # Batch columns that a client computes from the parameters it sees, before every phase and before predicting: which
    # head it uses, for instance. They never leave the client. Any leading axes.
    derived: Mapping[str, Callable[[Tree, Batch], Tensor]] = field(default_factory=dict)
    upload_rows: Literal["touched", "all"] = "touched"  # of a keyed parameter; all: zeros for those not touched
    head: tuple[str, ...] = ()  # globs of the last layer, for methods that give each user one
    reads: Literal["texts", "images"] = "texts"
    window: Window | None = None  # how much of a text is read; None: all of it


@dataclass(frozen=True)
class LocalTraining:
    """What a client does in a round, and what it discloses."""

    loss: Loss
    phases: tuple[LocalPhase, ...]
    client_weight: Callable[[int], float] = float  # from the number of examples
    example_weight: str | None = None  # the batch column with an example's weight in its batch's mean; None: equal
    statistics: Statistics = field(default_factory=dict)  # disclosed beside the update
    # How much of its private delta a client keeps: all of it (FURL's equation 7), or the share that its update has in
    # the cohort's average (equation 6).
    private_update: Literal["all", "share"] = "all"
    stochastic: bool = False  # the loss draws random numbers: training batches have a column `key` (core/draws.py)
    pooled: bool = False  # central training: one client has all users' examples


@dataclass(frozen=True)
class Method:
    """One paper: its model, local training, server rule, personalization and scoring. See docs/your-first-method.md."""

    name: str
    version: int  # rises when numbers may change
    settings: Settings
    task: Task
    model: ModelSpec
    local: LocalTraining
    personalize: Personalization  # after training, on the client; nothing is uploaded
    scoring: Scoring  # what evaluation means
    server: ServerRule = field(default_factory=FedAvg)
    transforms: tuple[UpdateTransform, ...] = ()  # applied to updates, besides the run's own
    artefacts: tuple[Artefact, ...] = ()  # made before and used here, such as a base model
    origin: str = ""  # the module or file this method came from
    files: tuple[MethodFile, ...] = ()  # the files outside the package it is made of, as they ran

    @property
    def base_model(self) -> Artefact | None:
        """The pre-trained language model underneath, if there is one."""
        return next((one for one in self.artefacts if one.kind == "base model"), None)

    def __repr__(self) -> str:
        return f"<Method {self.name}, version {self.version}>"


@dataclass(frozen=True, repr=False)
class BuiltMethod:
    """A method with its model in memory and every parameter in its role."""

    method: Method
    model: nn.Module
    partition: Partition
    initial: Mapping[str, Tensor]  # every parameter as built; the frozen ones are the model's own
    device: str = "cpu"  # where the model and `initial` are; an engine may place them elsewhere

    def start(self) -> ServerState:
        """The server's state before the first round."""
        return self.in_roles(ServerState(round=0, federated=self.initial, keyed={}))

    def in_roles(self, state: ServerState) -> ServerState:
        """The same values, each in the tree of its role: a state of an earlier version may have them elsewhere."""
        values = {**state.federated, **state.keyed, **state.server}
        federated, keyed, server = (
            self.partition.select(values, role) for role in (Role.FEDERATED, Role.KEYED, Role.SERVER)
        )
        return replace(state, federated=federated, keyed=keyed, server=server)

    def count(self, role: Role) -> int:
        """How many numbers have this role."""
        return sum(self.initial[name].numel() for name in self.partition.names(role))

    def parameters(self, broadcast: Broadcast, private: Tree) -> dict[str, Tensor]:
        """All parameters as one client sees them."""
        return {**self.partition.select(self.initial, Role.FROZEN), **broadcast.parameters, **private}

    def new_private(self, user: str, *, seed: int, broadcast: Broadcast | None = None) -> dict[str, Tensor]:
        """The private parameters of a user seen for the first time; without a broadcast, before the first round."""
        broadcast, spec = broadcast or self.start().broadcast(), self.method.model
        private = spec.new_private(seeds.torch_generator(seed, "private", user), broadcast)
        expected = set(self.partition.names(Role.PRIVATE))
        varies = spec.private_varies and all(self.partition.role_of(one) is Role.PRIVATE for one in private)
        if set(private) != expected and not varies:
            raise MethodError(
                f"{self.method.name}: new_private made {sorted(private)}, the rules say {sorted(expected)}"
            )
        return private

    def __repr__(self) -> str:
        counts = ", ".join(f"{self.count(role):,} {role.value}" for role in Role if self.partition.names(role))
        return f"<BuiltMethod {self.method.name}: {counts} numbers>"


@one_thread()
def build(method: Method, *, seed: int) -> BuiltMethod:
    """Build the model from the run's seed and check that each parameter has exactly one role."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds.derive(seed, "initial parameters") >> 1)
        model = method.model.build()
    model.requires_grad_(False)
    named = dict(model.named_parameters())
    parts = partition(named, method.model.roles, method=method.name, private_varies=method.model.private_varies)
    faults = _faults(method, parts)
    if faults:
        raise_faults(MethodError, method.name, faults)
    # A frozen parameter may be most of a language model: it is not held twice.
    initial = {
        name: value.detach() if parts.roles[name] is Role.FROZEN else value.detach().clone()
        for name, value in named.items()
    }
    return BuiltMethod(method, model, parts, initial)


def _faults(method: Method, parts: Partition) -> list[str]:
    """Where a method contradicts its own roles."""
    faults = []
    for phase in (*method.local.phases, *method.personalize.phases):
        idle = [glob for glob in phase.trains if not any(first_match(name, [glob]) for name in parts.roles)]
        faults += [f"a phase trains {idle}, which covers no parameter"] if idle else []
        for role in (Role.FROZEN, Role.SERVER):
            fixed = list(optimizers(phase, parts.names(role)))
            faults += [f"a phase trains {fixed}, which the rules call {role.value}"] if fixed else []
        shared = [one for one in getattr(phase, "names", ()) if parts.role_of(one) is not Role.PRIVATE]
        faults += [f"a phase assigns {shared}, which the rules do not call private"] if shared else []
    if method.local.stochastic and KEY in method.model.keys.values():
        faults.append(f"the column {KEY!r} is that of random draws, and cannot name rows as well")
    keyed, served = parts.names(Role.KEYED), parts.names(Role.SERVER)
    if set(method.model.keys) != set(keyed):
        faults.append(f"keys name {sorted(method.model.keys)}, the rules say {sorted(keyed)}")
    unknown = sorted(set(method.local.statistics) - set(served))
    if unknown:
        faults.append(f"statistics {unknown} have no parameter of this name with the role server")
    return faults


def optimizers(phase: LocalPhase, names: Iterable[str]) -> dict[str, Optimizer]:
    """The parameters this phase trains, each with its optimizer."""
    if isinstance(phase, Assign):
        return {}
    found = {name: phase.optimizer_of(name) for name in names}
    return {name: optimizer for name, optimizer in found.items() if optimizer is not None}
