"""Typed errors. A message says what is wrong and where, what was expected, and how to fix it.

A mistake in the user's input is an `InputError` (exit code 2). All faults of one input are collected and reported
together, see `raise_faults`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import NoReturn


class HomespunError(Exception):
    """Base class of all errors that homespun raises deliberately."""

    exit_code = 1


class InputError(HomespunError):
    """The user's input is invalid. It is raised before anything is written."""

    exit_code = 2


class DataError(InputError):
    """A corpus cannot be read, or not with the requested options."""


class SettingsError(InputError):
    """A setting, an override or a settings file is invalid."""


class UnknownNameError(InputError):
    """There is no method, corpus, user or column of this name."""


class UntrustedError(InputError):
    """A run folder requires running code or downloading files that the user has not approved."""


class PartitionError(InputError):
    """A method's rules do not assign exactly one role to each parameter."""


class MethodError(InputError):
    """A method is inconsistent with itself or with its model, or violates the contract of methods."""


class RunError(InputError):
    """A run folder cannot be opened or continued: it is damaged, in use, finished, or holds another run."""


class MessageError(HomespunError):
    """A received message is malformed, or does not answer the request."""


class VaultError(HomespunError):
    """The private state in a vault cannot be read or written."""


class DiskError(HomespunError):
    """A file cannot be written: the disk is full or fails, or the path is a symbolic link."""


class WorkerError(HomespunError):
    """A worker process or a remote engine failed."""


def nearest(name: str, options: Iterable[str]) -> str:
    """Return ` Did you mean 'furl'?`, or an empty string if no option is close."""
    matches = difflib.get_close_matches(name, list(options), n=1, cutoff=0.5)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def raise_faults(error: type[HomespunError], where: str, faults: Sequence[str]) -> NoReturn:
    """Raise one error that lists all faults of one input."""
    if len(faults) == 1:
        raise error(f"{where}: {faults[0]}")
    raise error(f"{where}: {len(faults)} faults:\n" + "\n".join(f"  - {fault}" for fault in faults))
