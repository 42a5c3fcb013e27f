"""Atomic, durable file writes that never follow a symbolic link.

A file is written to a random name in the same folder, synced, renamed, and the folder is synced. A kill, a full disk or
a power failure at any instant leaves either the old file or the new one. A kill may also leave the draft
(`.NAME.RANDOM.part`), which a later write of the same file removes.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedRandom
from pathlib import Path

from homespun.core.errors import DiskError

LEFTOVER_S = 3600.0  # no process is still writing a draft older than this


def write_whole(path: Path, content: str | bytes, *, mode: int = 0o666) -> Path:
    """Write a file atomically. When this returns, the file is on disk. `mode` is subject to the umask."""
    data = content.encode() if isinstance(content, str) else content
    draft = _draft_of(path)
    with _explained(path):
        _remove_leftovers(path)
        try:
            with open_file(draft, os.O_EXCL, mode=mode) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except BaseException:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        sync(path.parent)
    return path


@contextmanager
def draft_folder(path: Path, *, mode: int = 0o700) -> Iterator[Path]:
    """A new folder to fill inside the `with` block. It is renamed to `path` at the end, or removed after an error."""
    draft = _draft_of(path)
    with _explained(path):
        draft.mkdir(mode=mode, parents=True)
    try:
        yield draft
        with _explained(path):
            for file in sorted(draft.iterdir()):
                sync(file)
            sync(draft)
            draft.rename(path)
            sync(path.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def make_folder(folder: Path, *, mode: int = 0o777) -> None:
    """Make a folder and its missing parents. When this returns, they are on disk."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    for one in missing:
        sync(one.parent)


def open_file(path: Path, flags: int = 0, *, mode: int = 0o666) -> BufferedRandom:
    """Open a regular file for reading and writing, creating it if missing. Never follows a symbolic link."""
    try:
        handle = os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    except OSError:
        refuse_link(path)
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _no_file(path)
    return os.fdopen(handle, "r+b")


def refuse_link(path: Path) -> None:
    """Raise unless the path is a regular file or does not exist.

    For files that another library opens by name. A link created between this check and that call is followed, so a
    folder that others may write to is not safe.
    """
    try:
        kind = path.lstat().st_mode
    except OSError:
        return
    if stat.S_ISLNK(kind):
        raise DiskError(
            f"{path}: a symbolic link, and homespun never writes through one. Remove the link, or replace it with the "
            "file itself."
        )
    if not stat.S_ISREG(kind):
        raise _no_file(path)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's entries, are on disk.

    Both are needed: a synced file in a folder that is not synced may be gone after a power failure.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _no_file(path: Path) -> DiskError:
    return DiskError(f"{path}: not a regular file, so nothing is written to it. Remove it, or name another folder.")


def _draft_of(path: Path) -> Path:
    """An unpredictable, unique name in the same folder."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")


def _remove_leftovers(path: Path) -> None:
    start, oldest = f".{path.name}.", time.time() - LEFTOVER_S
    with os.scandir(path.parent) as entries:
        for entry in entries:
            if entry.name.startswith(start) and entry.name.endswith(".part") and _older(entry, oldest):
                with suppress(OSError):
                    os.unlink(entry.path)


def _older(entry: os.DirEntry[str], time_s: float) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_mtime < time_s
    except OSError:  # another writer was faster
        return False


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskError(f"{path}: the disk is full. Make room, then run the same command again.") from error
        remedy = "Check that the folder is yours and writable, then run the same command again."
        raise DiskError(f"{path}: cannot be written ({error.strerror}). {remedy}") from error
