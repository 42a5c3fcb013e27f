"""Where each parameter lives, and whether it may travel: one role per name, decided by ordered rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from torch import Tensor

from homespun.core.errors import PartitionError, raise_faults
from homespun.core.tree import Tree


class Role(Enum):
    FROZEN = "frozen"  # everyone has it, nobody changes it
    FEDERATED = "federated"  # the server's; goes down every round, comes up as a delta
    KEYED = "keyed"  # the server's, one row per key; touched rows come up
    SERVER = "server"  # the server's; goes down every round and never comes up: only the server rule changes it
    PRIVATE = "private"  # one user's; never travels


Rules = Sequence[tuple[str, Role]]
SHARED = (Role.FEDERATED, Role.KEYED)  # what clients train together


@dataclass(frozen=True)
class Partition:
    """Every parameter of a model with exactly one role."""

    roles: Mapping[str, Role]
    rules: Rules = ()  # that gave the roles

    def role_of(self, name: str) -> Role | None:
        """The role of a parameter, also of one that only some users have; None where no rule covers it."""
        pattern = first_match(name, [glob for glob, _ in self.rules])
        return self.roles.get(name) or next((role for glob, role in self.rules if glob == pattern), None)

    def names(self, *roles: Role) -> tuple[str, ...]:
        return tuple(name for name, role in self.roles.items() if role in roles)

    def select(self, tree: Tree, *roles: Role) -> dict[str, Tensor]:
        """The tensors of `tree` that have one of these roles; all of them have to be there."""
        return {name: tree[name] for name in self.names(*roles)}


def first_match(name: str, patterns: Iterable[str]) -> str | None:
    """The first glob that covers `name`."""
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)


def partition(names: Iterable[str], rules: Rules, *, method: str, private_varies: bool = False) -> Partition:
    """Give each name the role of the first rule that covers it.

    A name no rule covers, and a rule that decides nothing, are errors: both mean that somebody thinks
    a parameter is somewhere it is not. Where private parameters vary, a private rule may be for names that only users
    have.
    """
    names = list(names)
    patterns = [pattern for pattern, _ in rules]
    matches = {name: first_match(name, patterns) for name in names}
    shown = ", ".join(f"{pattern!r} -> {role.value}" for pattern, role in rules) or "none"
    faults = [
        f"no rule covers {name!r} (rules: {shown}). Add ({name.split('.')[0] + '.*'!r}, FEDERATED)."
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
        before = f"{matches[shadowed]!r} before it covers {shadowed!r}"
        return f"rule {pattern!r} decides nothing: {before}. Reorder or remove it."
    return f"rule {pattern!r} covers nothing (parameters: {', '.join(names)}). Correct or remove it."
