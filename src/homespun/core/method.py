"""The contract of a method: a model, the roles of its parameters, losses, phases and a server rule.

A method is a value. Its file exports `Settings` and `method(settings, task) -> Method`. The file's name, the settings
and the task determine the method: worker processes and resumed runs rebuild it from these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
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
from homespun.core.statistics import Statistics, bests, sums
from homespun.core.task import Artefact as Artefact
from homespun.core.task import MethodFile as MethodFile
from homespun.core.task import Task as Task
from homespun.core.task import Window as Window
from homespun.core.threads import one_thread
from homespun.core.transforms import UpdateTransform
from homespun.core.tree import Tree

Batch: TypeAlias = dict[str, Tensor]  # every tensor has one row per example
Predict: TypeAlias = Callable[[Tree, Batch], Tensor]  # parameters and a batch to the model's output
Loss: TypeAlias = Callable[[Predict, Tree, Batch], Tensor]  # one value per example


@runtime_checkable
class Stackable(Protocol):
    """A model that can train many clients at once. In `stacked`, every parameter that is not frozen and every column of
    the batch has a leading client axis; rows beyond a client's examples are padding. A model opts in by defining this
    function.

    A model with the attribute `takes_shared_weights = True` also accepts shared parameters without the client axis.
    Cohorts in which every client takes one gradient are then computed as one batch."""

    def stacked(self, parameters: Tree, batch: Batch) -> Tensor: ...


ALL_EXAMPLES = 1_000_000  # batch size that covers all examples of any user


@dataclass(frozen=True)
class Phase:
    """A sequence of gradient steps in local training. Every phase of every round starts with a fresh optimizer.

    `trains` maps globs to optimizers, first match wins; a parameter that no glob matches does not change. Give either
    `epochs` or `steps`. `mu` is FedProx's mu: it adds mu/2 |w - w_broadcast|^2 over the shared parameters to the loss.
    `loss` replaces the method's loss.

    `clip_norm` limits the norm of a step's gradient over all parameters that the phase trains, per client, as
    torch.nn.utils.clip_grad_norm_ does; the gradient of the FedProx term is included. It stabilizes training and gives
    no privacy.

    The batches and other random draws of a phase derive from its position among the phases. With `stream` they derive
    from that name instead: two methods draw the same numbers in phases of one name, so that the difference of their
    results is due to the methods and not to the draws.

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
    stream: str = ""

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
    """What an `Assign` phase computes private parameters from. For many clients at once, everything except frozen
    parameters has a leading client axis.

    Example:
        >>> view = LocalView(lambda *_: None, {}, {"x": torch.ones(3)}, lambda values: values.mean(dim=-1))
        >>> float(view.mean(view.batch["x"]))
        1.0
    """

    predict: Predict
    parameters: Tree
    batch: Batch  # all examples of the client; of many clients padded to the longest, so average with `mean` only
    mean: Callable[[Tensor], Tensor]  # over examples, weighted as in training: [..., examples] -> [...]


@dataclass(frozen=True)
class Assign:
    """A local step that is not a gradient step: it computes new values of private parameters from all examples of a
    client, for instance the direction of a user's gradient in PFedKM.

    Example:
        >>> Assign(("user.mean",), lambda view: {"user.mean": view.mean(view.batch["x"])}).names
        ('user.mean',)
    """

    names: tuple[str, ...]
    compute: Callable[[LocalView], Tree]
    trains: ClassVar[Mapping[str, Optimizer]] = MappingProxyType({})

    def __post_init__(self) -> None:
        if isinstance(self.names, str):
            raise MethodError(f"the names of an Assign phase are a tuple, got the text {self.names!r}")

    def values(self, view: LocalView) -> dict[str, Tensor]:
        """The new values of the named parameters, and of no others."""
        found = dict(self.compute(view))
        if found.keys() != set(self.names):
            raise MethodError(f"an Assign phase for {sorted(self.names)} returned {sorted(found)}")
        return found


LocalPhase: TypeAlias = Phase | Assign


def no_private(generator: torch.Generator, broadcast: Broadcast) -> dict[str, Tensor]:
    """The `new_private` of methods without private parameters."""
    return {}


@dataclass(frozen=True)
class ModelSpec:
    """The network, the roles of its parameters, and its inputs.

    Example:
        >>> from torch import nn
        >>> spec = ModelSpec(build=lambda: nn.Linear(4, 2), roles=[("*", Role.FEDERATED)], encode=lambda examples: {})
        >>> spec.reads, spec.keys
        ('texts', {})
    """

    build: Callable[[], nn.Module]
    roles: Rules  # globs to roles, first match wins
    encode: Callable[[Any], Batch]  # a federation's examples to tensors
    # The same for a part of a user's examples, with all of them as a second argument. Not set: `encode`.
    encode_part: Callable[[Any, Any], Batch] | None = None
    # Initial private parameters of a new user, from a random generator and the broadcast.
    new_private: Callable[[torch.Generator, Broadcast], dict[str, Tensor]] = no_private
    # Private parameters may differ between users: any names that a rule makes private, in any shape.
    private_varies: bool = False
    # Whether stored private parameters have a form that the model can use, if they may vary.
    private_fits: Callable[[Tree], bool] = lambda private: True
    keys: Mapping[str, str] = field(default_factory=dict)  # keyed parameter -> the batch column that names its rows
    # Batch columns that a client computes from its parameters and examples before every phase and before prediction,
    # for instance the index of its head. They never leave the client. Inputs may have any leading axes.
    derived: Mapping[str, Callable[[Tree, Batch], Tensor]] = field(default_factory=dict)
    upload_rows: Literal["touched", "all"] = "touched"  # of a keyed parameter; all: zeros for untouched rows
    head: tuple[str, ...] = ()  # globs of the output layer, for methods with one per user
    reads: Literal["texts", "images", "replies"] = "texts"  # replies: texts that have a prompt, and their prompts
    window: Window | None = None  # None: whole texts are read

    @property
    def medium(self) -> Literal["texts", "images"]:
        """What a corpus must hold for the model to read it."""
        return "images" if self.reads == "images" else "texts"


@dataclass(frozen=True)
class LocalTraining:
    """A client's training in a round, and the statistics it discloses.

    Example:
        >>> phase = Phase(trains={"*": Sgd(0.1)}, batch=8, epochs=1)
        >>> local = LocalTraining(loss=lambda predict, parameters, batch: predict(parameters, batch), phases=(phase,))
        >>> local.client_weight(20)
        20.0
    """

    loss: Loss
    phases: tuple[LocalPhase, ...]
    client_weight: Callable[[int], float] = float  # from the number of examples
    example_weight: str | None = None  # batch column with the weights of examples in the mean loss; None: equal
    statistics: Statistics = field(default_factory=dict)  # disclosed with the update
    # How much of its private delta a client applies: all of it (Eq. 7 of FURL), or its update's share of the cohort's
    # weight (Eq. 6).
    private_update: Literal["all", "share"] = "all"
    stochastic: bool = False  # the loss draws random numbers: training batches have a column `key` (core/draws.py)
    pooled: bool = False  # central training: one client holds the examples of all users


@dataclass(frozen=True)
class Method:
    """A method: its model, local training, server rule, personalization and scoring. See docs/your-first-method.md.

    Example:
        >>> from homespun.methods import fedavg
        >>> made = fedavg.method(fedavg.Settings(), Task(classes=2))
        >>> made
        <Method fedavg, version 1>
        >>> made.model.roles[0]
        ('characters.*', <Role.FEDERATED: 'federated'>)
    """

    name: str
    version: int  # incremented when results may change
    settings: Settings
    task: Task
    model: ModelSpec
    local: LocalTraining
    personalize: Personalization  # after training, on the client; nothing is uploaded
    scoring: Scoring  # how predictions are scored
    server: ServerRule = field(default_factory=FedAvg)
    transforms: tuple[UpdateTransform, ...] = ()  # applied to updates, in addition to the run's
    artefacts: tuple[Artefact, ...] = ()  # inputs that were made before, such as a base model
    origin: str = ""  # the module or file this method came from
    files: tuple[MethodFile, ...] = ()  # source files outside the package

    @property
    def base_model(self) -> Artefact | None:
        """The pre-trained language model that the method uses, if any."""
        return next((one for one in self.artefacts if one.kind == "base model"), None)

    def __repr__(self) -> str:
        return f"<Method {self.name}, version {self.version}>"


@dataclass(frozen=True, repr=False)
class BuiltMethod:
    """A method with its model in memory and a role for every parameter."""

    method: Method
    model: nn.Module
    partition: Partition
    initial: Mapping[str, Tensor]  # initial parameters; frozen ones share the model's memory
    device: str = "cpu"  # of the model and `initial`; engines may place a copy on another device

    def start(self) -> ServerState:
        """The server's state before the first round."""
        return self.in_roles(ServerState(round=0, federated=self.initial, keyed={}))

    def in_roles(self, state: ServerState) -> ServerState:
        """Sort a state's values into the trees of their roles, which may differ in a state of an earlier version."""
        values = {**state.federated, **state.keyed, **state.server}
        federated, keyed, server = (
            self.partition.select(values, role) for role in (Role.FEDERATED, Role.KEYED, Role.SERVER)
        )
        return replace(state, federated=federated, keyed=keyed, server=server)

    def count(self, role: Role) -> int:
        """Count the numbers in parameters of this role."""
        return sum(self.initial[name].numel() for name in self.partition.names(role))

    def parameters(self, broadcast: Broadcast, private: Tree) -> dict[str, Tensor]:
        """Return all parameters of one client: frozen, broadcast and private."""
        return {**self.partition.select(self.initial, Role.FROZEN), **broadcast.parameters, **private}

    def new_private(self, user: str, *, seed: int, broadcast: Broadcast | None = None) -> dict[str, Tensor]:
        """Return the initial private parameters of a user; without a broadcast, those before the first round."""
        broadcast, spec = broadcast or self.start().broadcast(), self.method.model
        private = spec.new_private(seeds.torch_generator(seed, "private", user), broadcast)
        expected = set(self.partition.names(Role.PRIVATE))
        varies = spec.private_varies and all(self.partition.role_of(one) is Role.PRIVATE for one in private)
        if set(private) != expected and not varies:
            raise MethodError(
                f"{self.method.name}: new_private returned {sorted(private)}, "
                f"but the private parameters are {sorted(expected)}"
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
    # Frozen parameters may be most of a language model, so they are not copied.
    initial = {
        name: value.detach() if parts.roles[name] is Role.FROZEN else value.detach().clone()
        for name, value in named.items()
    }
    built = BuiltMethod(method, model, parts, initial)
    faults = _statistic_faults(built)
    if faults:
        raise_faults(MethodError, method.name, faults)
    return built


def _faults(method: Method, parts: Partition) -> list[str]:
    """Return the inconsistencies between a method and its roles."""
    faults = []
    for phase in (*method.local.phases, *method.personalize.phases):
        unmatched = [glob for glob in phase.trains if not any(first_match(name, [glob]) for name in parts.roles)]
        faults += [f"a phase trains {unmatched}, which matches no parameter"] if unmatched else []
        for role in (Role.FROZEN, Role.SERVER):
            fixed = list(optimizers(phase, parts.names(role)))
            faults += [f"a phase trains {fixed}, which has the role {role.value}"] if fixed else []
        shared = [one for one in getattr(phase, "names", ()) if parts.role_of(one) is not Role.PRIVATE]
        faults += [f"a phase assigns {shared}, which does not have the role private"] if shared else []
    for phases in (method.local.phases, method.personalize.phases):
        streams = [phase.stream for phase in phases if isinstance(phase, Phase) and phase.stream]
        repeated = sorted({one for one in streams if streams.count(one) > 1})
        faults += [f"two phases have the stream {repeated}: their draws would be the same"] if repeated else []
    if not any(isinstance(phase, Phase) for phase in method.local.phases):
        faults.append("no phase takes gradient steps. Give LocalTraining a Phase")
    if method.local.stochastic and KEY in method.model.keys.values():
        faults.append(f"the column {KEY!r} is reserved for random draws and cannot be used in `keys`")
    keyed, served = parts.names(Role.KEYED), parts.names(Role.SERVER)
    if set(method.model.keys) != set(keyed):
        faults.append(f"`keys` has {sorted(method.model.keys)}, but the keyed parameters are {sorted(keyed)}")
    unknown = sorted(set(method.local.statistics) - set(served))
    if unknown:
        faults.append(f"statistics {unknown}: there is no parameter of this name with the role server")
    return faults


def _statistic_faults(built: BuiltMethod) -> list[str]:
    """Compute each statistic once, for a new user: a wrong one would otherwise be found in training, or under
    differential privacy never."""
    declared = built.method.local.statistics
    if not sums(declared) and not bests(declared):
        return []
    generator, faults = seeds.torch_generator(0, "statistics"), []
    parameters = built.parameters(built.start().broadcast(), built.new_private("a new user", seed=0))
    computed = {name: partial(one.compute, parameters, generator) for name, one in sums(declared).items()}
    computed |= {name: partial(one.compute, parameters) for name, one in bests(declared).items()}
    for name, compute in computed.items():
        expected = tuple(built.initial[name].shape)
        try:
            shape = tuple(compute().shape)
        except Exception as error:  # it is the method's own code
            faults.append(f"statistic {name!r} fails for a new user: {type(error).__name__}: {error}")
        else:
            if shape != expected:
                faults.append(f"statistic {name!r} has shape {shape}, but its parameter has shape {expected}")
    return faults


def optimizers(phase: LocalPhase, names: Iterable[str]) -> dict[str, Optimizer]:
    """Return the parameters that this phase trains, with their optimizers."""
    if isinstance(phase, Assign):
        return {}
    found = {name: phase.optimizer_of(name) for name in names}
    return {name: optimizer for name, optimizer in found.items() if optimizer is not None}
