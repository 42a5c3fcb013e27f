"""Methods that are put onto another method's network: FedRep over FURL's, pFedMe over FedEmbed's, and so on.

Such a method takes the network, the examples and the loss of another one as they are, and says anew which parameters
are whose and how they are trained.
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
from homespun.core.method import Method, Optimizer, Phase, Task, optimizers
from homespun.core.personalize import GradientSteps
from homespun.core.roles import Partition, Role, first_match, partition
from homespun.core.settings import Settings
from homespun.core.tree import Tree
from homespun.system.method_loading import load_method

START = 0  # seed of the values that a personal part starts from; everybody's are the same


class OntoSettings(Settings):
    of: str = "preference"
    """The method whose network, loss and examples are used."""
    inner: dict[str, Any] = Field(default_factory=dict)
    """Settings of that method, as in inner.rate=0.1."""
    head: tuple[str, ...] = ()
    """Globs of the parameters that are personal. Empty: what that method calls its head."""

    @field_validator("head", mode="before")
    @classmethod
    def _one_or_several(cls, head: Any) -> Any:
        return (head,) if isinstance(head, str) else head


@dataclass(frozen=True)
class Onto:
    """The method underneath, with its parameters by name."""

    method: Method
    partition: Partition
    start: Mapping[str, Tensor]  # every parameter as built
    head: tuple[str, ...]  # names

    @property
    def body(self) -> tuple[str, ...]:
        """What is shared and not in the head."""
        shared = self.partition.names(Role.FEDERATED, Role.KEYED)
        return tuple(name for name in shared if name not in self.head)

    @property
    def private(self) -> tuple[str, ...]:
        """What is at home already."""
        return self.partition.names(Role.PRIVATE)

    def phases(self, names: Collection[str], *, at_home: bool = False) -> tuple[Phase, ...]:
        """The method's phases, or those of somebody who is on their own, as far as they train these parameters."""
        found = []
        for phase in self.method.personalize.phases if at_home else self.method.phases:
            trains: dict[str, Optimizer] = optimizers(phase, [name for name in self.partition.roles if name in names])
            if trains:
                found.append(replace(phase, trains=trains))
        return tuple(found)

    def new_private(self, generator: torch.Generator, broadcast: Broadcast, *, prefix: str = "") -> dict[str, Tensor]:
        """Where the method lets somebody new begin, under names with a prefix."""

        def theirs(values: Tree) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): value for name, value in values.items()}

        plain = replace(broadcast, federated=theirs(broadcast.federated), keyed=theirs(broadcast.keyed))
        return {prefix + name: value for name, value in self.method.new_private(generator, plain).items()}


def underneath(settings: OntoSettings, task: Task, *, name: str) -> Onto:
    """Build the other method once, to know its parameters."""
    method = load_method(settings.of, settings.inner, task)
    held = "texts" if task.image is None else "images"
    if method.reads != held:
        others = "furl (labels) or fedperc (language)" if held == "texts" else "preference"
        raise SettingsError(
            f"{name}: it takes the network of {settings.of!r}, which reads {method.reads}, and this corpus has {held}. "
            f"Set of to {others}."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(START)
        model = method.build()
    start = {parameter: value.detach() for parameter, value in model.named_parameters()}
    parts = partition(start, method.rules, method=method.name)
    hooks = ("release", "elects", "prototypes", "columns")
    own = [hook for hook in hooks if getattr(method, hook) is not None]
    own += ["a way to personalize"] if not isinstance(method.personalize, GradientSteps) else []
    if own:
        raise SettingsError(
            f"{name}: {settings.of} with these settings is more than a network (it has {', '.join(own)}), and cannot "
            "be taken as one. Take a plainer method: preference, furl, fedperc, meta_learning."
        )
    if method.pooled:
        raise SettingsError(f"{name}: {settings.of} trains on one server, where nobody has anything of their own.")
    window = method.window and replace(method.window, setting=f"inner.{method.window.setting}")
    method = replace(method, keeps="all", window=window)  # a head is not the server's to share out
    globs = settings.head or method.head
    head = tuple(parameter for parameter in start if first_match(parameter, globs))
    unused = [glob for glob in settings.head if not any(first_match(parameter, [glob]) for parameter in start)]
    if unused:
        known = ", ".join(start)
        raise SettingsError(
            f"{name}: head {unused[0]!r} covers no parameter.{nearest(unused[0], start)} There are: {known}."
        )
    if not head:
        raise SettingsError(
            f"{name}: {method.name} does not say which of its parameters are its head. Name them, for instance "
            f"head = [{list(start)[-1]!r}]. There are: {', '.join(start)}."
        )
    frozen = [parameter for parameter in head if parts.roles[parameter] is Role.FROZEN]
    if frozen:
        raise SettingsError(f"{name}: {', '.join(frozen)} of {method.name} is frozen, so it cannot be anybody's own.")
    return Onto(method, parts, start, head)
