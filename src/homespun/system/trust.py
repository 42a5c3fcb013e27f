"""Decides whether code or a download that a run folder names may be used. A run folder is untrusted data.

A folder names a method, a corpus and a base model, and it may come from anyone. A method file outside the package is
code, and a name on the Hugging Face hub is a download. Either is used only if

- the user names it: on the command line, in an experiment file or in Python (`named_by_user`);
- the user named it before: it is in the user's own record, code by its SHA-256; or
- the user vouches for it: `--trust`, or `reopen(folder, trust=...)` (`vouched_for`).

The record is in the user's own data folder, never in a run folder, which a stranger may have written.
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
_NO_PLACE = (OSError, RuntimeError)  # RuntimeError: the user has no home directory

Kind: TypeAlias = Literal["method", "hub"]  # a method file by its SHA-256; a name on the Hugging Face hub
Names: TypeAlias = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class _Scope:
    """The origin of the names that are currently looked up."""

    by_user: bool = False
    vouched: frozenset[str] = frozenset()


_scope: ContextVar[_Scope | None] = ContextVar("scope", default=None)
_session: set[tuple[Kind, str]] = set()  # allowed in this process, even if the record cannot be written


@contextmanager
def named_by_user() -> Iterator[None]:
    """In this block, or in a function with this decorator, all names come from the user. They are added to the
    record."""
    token = _scope.set(_Scope(by_user=True))
    try:
        yield
    finally:
        _scope.reset(token)


@contextmanager
def vouched_for(names: Names) -> Iterator[None]:
    """In this block, names come from a folder. The user vouches only for these, and only inside the block."""
    several = [names] if isinstance(names, str | Path) else names
    vouched = frozenset(str(Path(name).resolve()) if str(name).endswith(".py") else str(name) for name in several)
    token = _scope.set(_Scope(vouched=vouched))
    try:
        yield
    finally:
        _scope.reset(token)


def allows(kind: Kind, key: str, *, name: str) -> bool:
    """Whether this may be used. `key` identifies it; `name` is what a user vouches for."""
    scope = _scope.get() or _Scope()
    if scope.by_user:
        _remember(kind, key, name=name)
        return True
    return name in scope.vouched or (kind, key) in _session or _recorded(kind, key)


def used_before(kind: Kind, *, name: str) -> bool:
    """Whether the user ever used something of this name, possibly with other content."""
    return any(entry.get("kind") == kind and entry.get("name") == name for entry in _record())


def record_path() -> Path:
    own = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "homespun"
    return own / RECORD_FILE


def _recorded(kind: Kind, key: str) -> bool:
    return any(entry.get("kind") == kind and entry.get("key") == key for entry in _record())


def _record() -> list[dict[str, Any]]:
    """The valid lines of the record; others are ignored."""
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
    with suppress(*_NO_PLACE):  # without a record, the next process asks the user again
        path = record_path()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o600), "ab", buffering=0) as file:
            file.write(line.encode() + b"\n")
