"""Methods that wrap another method's network: FedRep over FURL's, pFedMe over FedEmbed's, and so on.

A wrapper keeps the network, the examples and the loss of its base method, and changes the roles of the parameters and
their training.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from pydantic import Field, field_validator
from torch import Tensor

from homespun.core.errors import SettingsError, nearest
from homespun.core.messages import Broadcast
from homespun.core.method import LocalTraining, Method, ModelSpec, Optimizer, Phase, Task, optimizers
from homespun.core.personalize import GradientSteps
from homespun.core.roles import Partition, Role, first_match, partition
from homespun.core.scoring import Scoring
from homespun.core.settings import Settings, parse
from homespun.core.tree import Tree
from homespun.evaluation.language import ReplyScoring
from homespun.system.method_loading import load_method, method_module, settings_command

START_SEED = 0  # of the initial values of personal parameters, which are the same for all users


class WrapperSettings(Settings):
    base_method: str = "preference"
    """The method whose network, loss and examples are used."""
    base_settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of that method, as in base_settings.lr=0.1."""
    head: tuple[str, ...] = ()
    """Globs of the parameters that users or clusters have their own copies of. Empty: the head of the base method."""

    @field_validator("head", mode="before")
    @classmethod
    def _one_or_several(cls, head: Any) -> Any:
        return (head,) if isinstance(head, str) else head

    def identity(self) -> dict[str, Any]:
        found, scored = super().identity(), self._of_base().evaluation_only
        return {**found, "base_settings": {key: one for key, one in self.base_settings.items() if key not in scored}}

    def evaluation(self) -> dict[str, Any]:
        base = self._of_base().evaluation()
        return {**super().evaluation(), **{f"base_settings.{name}": value for name, value in base.items()}}

    def _of_base(self) -> Settings:
        """The settings of the base method."""
        where, listed_by = f"method {self.base_method}", settings_command(self.base_method)
        return parse(method_module(self.base_method).Settings, self.base_settings, where=where, listed_by=listed_by)


@dataclass(frozen=True)
class BaseMethod:
    """The base method, with its parameters by name."""

    method: Method
    partition: Partition
    start: Mapping[str, Tensor]  # every parameter as built
    head: tuple[str, ...]  # names

    @property
    def model(self) -> ModelSpec:
        return self.method.model

    @property
    def local(self) -> LocalTraining:
        return self.method.local

    @property
    def last_phase(self) -> Phase:
        return _gradient_phases(self.method)[-1]

    @property
    def body(self) -> tuple[str, ...]:
        """The shared parameters that are not in the head."""
        shared = self.partition.names(Role.FEDERATED, Role.KEYED)
        return tuple(name for name in shared if name not in self.head)

    @property
    def private(self) -> tuple[str, ...]:
        """The parameters that are private in the base method."""
        return self.partition.names(Role.PRIVATE)

    def phases(self, names: Collection[str], *, personalization: bool = False) -> tuple[Phase, ...]:
        """The method's phases of a round, or those of personalization, restricted to these parameters."""
        found = []
        for phase in self.method.personalize.phases if personalization else _gradient_phases(self.method):
            trains: dict[str, Optimizer] = optimizers(phase, [name for name in self.partition.roles if name in names])
            if trains:
                found.append(replace(phase, trains=trains))
        return tuple(found)

    def new_private(self, generator: torch.Generator, broadcast: Broadcast, *, prefix: str = "") -> dict[str, Tensor]:
        """The private parameters that a new user starts from, under names with a prefix."""

        def unprefixed(values: Tree) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): value for name, value in values.items()}

        plain = replace(broadcast, federated=unprefixed(broadcast.federated), keyed=unprefixed(broadcast.keyed))
        return {prefix + name: value for name, value in self.model.new_private(generator, plain).items()}


def load_base(settings: WrapperSettings, task: Task, *, name: str) -> BaseMethod:
    """Build the base method once, to learn its parameters. `name` is the wrapper's, for error messages."""
    method = load_method(settings.base_method, settings.base_settings, task)
    _require_network(method, settings, task, name=name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(START_SEED)
        model = method.model.build()
    start = {parameter: value.detach() for parameter, value in model.named_parameters()}
    parts = partition(start, method.model.roles, method=method.name)
    window = method.model.window and replace(
        method.model.window, setting=f"base_settings.{method.model.window.setting}"
    )
    local = replace(method.local, private_update="all")  # a private head keeps its whole delta
    method = replace(method, model=replace(method.model, window=window), local=local)
    return BaseMethod(method, parts, start, _head(method, parts, settings, name=name))


def words_only(scoring: Scoring) -> Scoring:
    """The scoring of a network whose parameters have other names: decoders do not know it, so its replies are scored
    word by word, and none are generated."""
    return replace(scoring, replies=0) if isinstance(scoring, ReplyScoring) else scoring


def _gradient_phases(method: Method) -> list[Phase]:
    return [phase for phase in method.local.phases if isinstance(phase, Phase)]


def _require_network(method: Method, settings: WrapperSettings, task: Task, *, name: str) -> None:
    """Raise unless the method is a plain network, which can be trained by another rule."""
    held = "texts" if task.image is None else "images"
    if method.model.medium != held:
        others = "furl (labels) or fedperc (language)" if held == "texts" else "preference"
        raise SettingsError(
            f"{name}: the network of {settings.base_method!r} reads {method.model.reads}, but this corpus has {held}. "
            f"Set base_method to {others}."
        )
    extras = {
        "statistics": bool(method.local.statistics),
        "derived columns": bool(method.model.derived),
        "steps that are not gradient steps": len(_gradient_phases(method)) < len(method.local.phases),
        "its own personalization": not isinstance(method.personalize, GradientSteps),
    }
    if any(extras.values()):
        listed = ", ".join(extra for extra, present in extras.items() if present)
        raise SettingsError(
            f"{name}: {settings.base_method} with these settings is not a plain network: it has {listed}. "
            "Set base_method to preference, furl, fedperc or meta_learning."
        )
    if method.local.pooled:
        raise SettingsError(
            f"{name}: {settings.base_method} trains on one server, without clients that could have private parameters. "
            "Set base_method to a federated method."
        )


def _head(method: Method, parts: Partition, settings: WrapperSettings, *, name: str) -> tuple[str, ...]:
    """The names of the parameters that become personal."""
    names = list(parts.roles)
    globs = settings.head or method.model.head
    unused = [glob for glob in settings.head if not any(first_match(parameter, [glob]) for parameter in names)]
    if unused:
        raise SettingsError(
            f"{name}: head {unused[0]!r} matches no parameter.{nearest(unused[0], names)} "
            f"There are: {', '.join(names)}."
        )
    head = tuple(parameter for parameter in names if first_match(parameter, globs))
    if not head:
        raise SettingsError(
            f"{name}: {method.name} does not declare which of its parameters are its head. Name them, for instance "
            f"head = [{names[-1]!r}]. There are: {', '.join(names)}."
        )
    frozen = [parameter for parameter in head if parts.roles[parameter] is Role.FROZEN]
    if frozen:
        raise SettingsError(f"{name}: {', '.join(frozen)} of {method.name} is frozen, so it cannot be personal.")
    return head
