"""What a run's folder may make this machine do: nothing that its user has not asked for.

A folder names a method, a corpus and a base model, and a folder may come from anyone. Two of these are more than
files to read: a method file outside the package is code, and a name on the Hugging Face hub is a download. Either
is used only if

- the user names it: on the command line, in an experiment file or in Python (`named_by_user`);
- the user named it before: it is in their own record, code by its SHA-256; or
- the user vouches for it: `--trust`, or `reopen(folder, trust=...)` (`vouched_for`).

The record lies among homespun's own files of this user, never in a run's folder: a stranger writes those.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

RECORD_FILE = "trusted.jsonl"
_NO_PLACE = (OSError, RuntimeError)  # RuntimeError: this user has no home

Kind: TypeAlias = Literal["method", "hub"]  # a method file by its SHA-256; a name on the Hugging Face hub
Names: TypeAlias = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class _Scope:
    """Who names what is looked up at the moment."""

    by_user: bool = False
    vouched: frozenset[str] = frozenset()


_scope: ContextVar[_Scope | None] = ContextVar("scope", default=None)
_session: set[tuple[Kind, str]] = set()  # what this process was given, for when the record cannot be written


@contextmanager
def named_by_user() -> Iterator[None]:
    """In here, and in a function with this decorator, all names come from the user, who is remembered to have used
    them."""
    token = _scope.set(_Scope(by_user=True))
    try:
        yield
    finally:
        _scope.reset(token)


@contextmanager
def vouched_for(names: Names) -> Iterator[None]:
    """In here, names come from a folder; the user vouches for these alone, and for no longer than this."""
    several = [names] if isinstance(names, str | Path) else names
    vouched = frozenset(str(Path(name).resolve()) if str(name).endswith(".py") else str(name) for name in several)
    token = _scope.set(_Scope(vouched=vouched))
    try:
        yield
    finally:
        _scope.reset(token)


def allows(kind: Kind, key: str, *, name: str) -> bool:
    """Whether this may be used. The key identifies it; the name is what a user vouches for."""
    scope = _scope.get() or _Scope()
    if scope.by_user:
        _remember(kind, key, name=name)
        return True
    return name in scope.vouched or (kind, key) in _session or _recorded(kind, key)


def used_before(kind: Kind, *, name: str) -> bool:
    """Whether the user once used something of this name, be it the same or not."""
    return any(entry.get("kind") == kind and entry.get("name") == name for entry in _record())


def record_path() -> Path:
    own = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "homespun"
    return own / RECORD_FILE


def _recorded(kind: Kind, key: str) -> bool:
    return any(entry.get("kind") == kind and entry.get("key") == key for entry in _record())


def _record() -> list[dict[str, Any]]:
    """What can be read of it: a line that cannot be read vouches for nothing."""
    try:
        lines = record_path().read_bytes().splitlines()
    except _NO_PLACE:
        return []
    found = []
    for line in lines:
        with suppress(ValueError):
            entry = json.loads(line)
            found += [entry] if isinstance(entry, dict) else []
    return found


def _remember(kind: Kind, key: str, *, name: str) -> None:
    if (kind, key) in _session:
        return
    _session.add((kind, key))
    if _recorded(kind, key):
        return
    line = json.dumps({"kind": kind, "key": key, "name": name, "at": datetime.now(UTC).isoformat(timespec="seconds")})
    with suppress(*_NO_PLACE):  # without a record, the next process asks to be told
        path = record_path()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o600), "ab", buffering=0) as file:
            file.write(line.encode() + b"\n")
