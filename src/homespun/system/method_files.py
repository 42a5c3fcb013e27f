"""Method files outside the package: read once, checked by the hash of what was read, and run from that very text.

A method carries the text of its files, so that worker processes and later stages of a run execute what was checked,
whatever becomes of the file on disk.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import decode_source
from pathlib import Path
from types import ModuleType

from homespun.core.errors import MethodError, UnknownNameError, UntrustedError
from homespun.core.method import MethodFile
from homespun.system import trust

_in_use: ContextVar[dict[str, MethodFile] | None] = ContextVar("in_use", default=None)


@contextmanager
def gathered(files: Sequence[MethodFile] = ()) -> Iterator[dict[str, MethodFile]]:
    """Gather the files that a method is made of by their paths; those given are not read again.

    A method may be put onto another one: the files of both are gathered together.
    """
    outer = _in_use.get()
    if outer is not None:
        yield outer
        return
    found = {file.path: file for file in files}
    token = _in_use.set(found)
    try:
        yield found
    finally:
        _in_use.reset(token)


def module_from_file(path: Path) -> ModuleType:
    """Run a method file, if it may run."""
    whole, gathering = str(path.resolve()), _in_use.get()
    if gathering is not None and whole in gathering:
        return _executed(gathering[whole])
    file = _read(Path(whole), named=str(path))
    if not trust.allows("method", file.sha256, name=whole):
        raise UntrustedError(_refusal(file))
    if gathering is not None:
        gathering[whole] = file
    return _executed(file)


def _read(path: Path, *, named: str) -> MethodFile:
    if not path.is_file():
        raise UnknownNameError(f"no method file {named!r}")
    content = path.read_bytes()
    try:
        source = decode_source(content)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise MethodError(f"{named}: not Python source: {error}") from None
    return MethodFile(str(path), hashlib.sha256(content).hexdigest(), source)


def _executed(file: MethodFile) -> ModuleType:
    # a name of its own, so that a file called json.py is not taken for the library
    module = ModuleType(f"homespun_method_{Path(file.path).stem}")
    module.__file__ = file.path
    sys.modules[module.__name__] = module  # dataclasses look their module up while it is being executed
    exec(compile(file.source, file.path, "exec", dont_inherit=True), vars(module))
    return module


def _refusal(file: MethodFile) -> str:
    changed = " It has changed since you trained with it." if trust.used_before("method", name=file.path) else ""
    return (
        f"the method file {file.path!r} (SHA-256 {file.sha256[:16]}...) would run as code, and you have not trained "
        f"with it on this machine.{changed} Read it. If you trust it, name it: --trust {file.path}, or in Python "
        f"trust={file.path!r}."
    )
