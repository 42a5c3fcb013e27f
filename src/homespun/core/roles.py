"""Roles: where each parameter is stored and whether it is sent. Ordered rules assign one role per name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from torch import Tensor

from homespun.core.errors import PartitionError, raise_faults
from homespun.core.tree import Tree


class Role(Enum):
    """Example:
    >>> [role.value for role in Role]
    ['frozen', 'federated', 'keyed', 'server', 'private']
    """

    FROZEN = "frozen"  # built by every process, never changed
    FEDERATED = "federated"  # held by the server; broadcast every round, uploaded as a delta
    KEYED = "keyed"  # held by the server, one row per key; uploaded as deltas of rows
    SERVER = "server"  # held by the server; broadcast every round, changed by the server rule only
    PRIVATE = "private"  # held by the client; never sent


Rules = Sequence[tuple[str, Role]]
SHARED = (Role.FEDERATED, Role.KEYED)  # parameters that clients train together


@dataclass(frozen=True)
class Partition:
    """Every parameter of a model with exactly one role."""

    roles: Mapping[str, Role]
    rules: Rules = ()  # the rules that assigned the roles

    def role_of(self, name: str) -> Role | None:
        """Return the role of a parameter, even of one that only some users have; None if no rule matches."""
        pattern = first_match(name, [glob for glob, _ in self.rules])
        return self.roles.get(name) or next((role for glob, role in self.rules if glob == pattern), None)

    def names(self, *roles: Role) -> tuple[str, ...]:
        return tuple(name for name, role in self.roles.items() if role in roles)

    def select(self, tree: Tree, *roles: Role) -> dict[str, Tensor]:
        """Return the tensors with one of these roles; KeyError if `tree` lacks one."""
        return {name: tree[name] for name in self.names(*roles)}


def first_match(name: str, patterns: Iterable[str]) -> str | None:
    """Return the first glob that matches `name`."""
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)


def partition(names: Iterable[str], rules: Rules, *, method: str, private_varies: bool = False) -> Partition:
    """Assign each name the role of the first rule that matches it.

    A name without a matching rule and a rule without effect are errors: a parameter could be in another role than its
    author believes. If private parameters vary between users, a private rule may match no parameter of the model.
    """
    names = list(names)
    patterns = [pattern for pattern, _ in rules]
    matches = {name: first_match(name, patterns) for name in names}
    shown = ", ".join(f"{pattern!r} -> {role.value}" for pattern, role in rules) or "none"
    faults = [
        f"no rule matches {name!r} (rules: {shown}). Add ({name.split('.')[0] + '.*'!r}, FEDERATED)."
        for name, match in matches.items()
        if match is None
    ]
    needed = [pattern for pattern, role in rules if not (private_varies and role is Role.PRIVATE)]
    faults += [_useless_rule(pattern, names, matches) for pattern in needed if pattern not in matches.values()]
    if faults:
        raise_faults(PartitionError, method, faults)
    role_of = dict(reversed([(pattern, role) for pattern, role in rules]))
    return Partition({name: role_of[match] for name, match in matches.items() if match is not None}, tuple(rules))


def _useless_rule(pattern: str, names: Sequence[str], matches: Mapping[str, str | None]) -> str:
    shadowed = next((name for name in names if fnmatchcase(name, pattern)), None)
    if shadowed is not None:
        before = f"the earlier rule {matches[shadowed]!r} matches {shadowed!r}"
        return f"rule {pattern!r} has no effect: {before}. Reorder or remove it."
    return f"rule {pattern!r} matches nothing (parameters: {', '.join(names)}). Correct or remove it."
