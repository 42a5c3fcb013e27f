"""Entries of a vault: encoding of user ids, and descriptions of rows."""

from __future__ import annotations

from dataclasses import dataclass

from homespun.core.errors import VaultError


@dataclass(frozen=True)
class Entry:
    """One committed private row, without its content."""

    user: str
    round: int | None  # None: damaged
    size_bytes: int


@dataclass(frozen=True)
class Quarantined:
    """A private row that failed its checksum, unchanged."""

    user: str
    round: int | None  # None: damaged
    reason: str
    at: str
    data: bytes


def encode_user(user: str) -> bytes:
    """A user's id as bytes, one to one. SQLite's text type would not preserve a NUL or a lone surrogate."""
    if not user:
        raise VaultError("a user id is empty. Any other text is allowed.")
    return user.encode("utf-8", "surrogatepass")


def decode_user(key: object) -> str:
    try:
        return as_bytes(key).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:  # a damaged key is listed too
        return as_bytes(key).decode("utf-8", "backslashreplace")


def as_bytes(found: object) -> bytes:
    """SQLite does not enforce types: in a damaged or forged file a value may have any type."""
    return found if isinstance(found, bytes) else repr(found).encode()


def as_integer(found: object) -> int | None:
    return found if isinstance(found, int) else None


def quote_user(user: str) -> str:
    return repr(user) if len(user) <= 100 else f"{user[:100]!r}... ({len(user)} characters)"
