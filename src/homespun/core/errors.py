"""Typed errors that say what, where, expected, got, and what to do about it.

Everything a user can get wrong is an `InputError` (exit code 2). All faults of one input are
collected and reported together; see `raise_faults`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import NoReturn


class HomespunError(Exception):
    """Anything homespun raises on purpose."""

    exit_code = 1


class InputError(HomespunError):
    """The user's input is wrong: nothing was written."""

    exit_code = 2


class DataError(InputError):
    """A corpus cannot be read as asked."""


class SettingsError(InputError):
    """A setting, override or settings file is wrong."""


class UnknownNameError(InputError):
    """No method, corpus, user or column has this name."""


class UntrustedError(InputError):
    """A run's folder asks for code or a download that its user has not asked for."""


class PartitionError(InputError):
    """The rules of a method do not give each parameter exactly one role."""


class MethodError(InputError):
    """A method contradicts itself or its model."""


class RunError(InputError):
    """A run folder cannot be used as asked (finished, different, in use)."""


class MessageError(HomespunError):
    """Something that arrived is not the message it should be."""


class VaultError(HomespunError):
    """Private state cannot be read or written."""


class DiskError(HomespunError):
    """A file cannot be written: the disk is full or broken, or a symbolic link is in the way."""


class WorkerError(HomespunError):
    """A worker process died or failed."""


def nearest(name: str, options: Iterable[str]) -> str:
    """` Did you mean 'furl'?`, or nothing when no option is close."""
    matches = difflib.get_close_matches(name, list(options), n=1, cutoff=0.5)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def raise_faults(error: type[HomespunError], where: str, faults: Sequence[str]) -> NoReturn:
    """Raise one error that lists every fault found in one input."""
    if len(faults) == 1:
        raise error(f"{where}: {faults[0]}")
    raise error(f"{where}: {len(faults)} faults:\n" + "\n".join(f"  - {fault}" for fault in faults))
