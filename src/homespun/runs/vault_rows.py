"""Entries of a vault: users' ids as bytes, and what is said of a row."""

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
    """A private row that failed its checksum, as it was found."""

    user: str
    round: int | None  # None: damaged
    reason: str
    at: str
    data: bytes


def user_key(user: str) -> bytes:
    """A user's id as bytes, one to one: as SQLite text a NUL or a lone surrogate would not survive."""
    if not user:
        raise VaultError("a user id is empty. Any other text is legal.")
    return user.encode("utf-8", "surrogatepass")


def user_of(key: object) -> str:
    try:
        return bytes_of(key).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:  # a damaged key must still be listed
        return bytes_of(key).decode("utf-8", "backslashreplace")


def bytes_of(found: object) -> bytes:
    """SQLite keeps no types: what should be bytes may be anything in a damaged or forged file."""
    return found if isinstance(found, bytes) else repr(found).encode()


def number_of(found: object) -> int | None:
    return found if isinstance(found, int) else None


def quoted(user: str) -> str:
    return repr(user) if len(user) <= 100 else f"{user[:100]!r}... ({len(user)} characters)"
