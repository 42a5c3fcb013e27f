"""What has been told of a data set, over all runs: a text file beside the data, one line for each round.

A round is debited before it is released, and the release waits until the line is on disk. So a kill in between costs
a round that was never told, and never the other way round. A line that is not whole at the end of the file was never
waited for; everything else that cannot be read is an error, since it may stand for something that was told.

Nothing is ever removed: a reset is a line too, and the lines before it stay to be read.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from homespun.core.errors import HomespunError, InputError, RunError, SettingsError, UnknownNameError
from homespun.disk import open_file, sync
from homespun.privacy.accounting import Release, affordable, epsilon

SUFFIX = ".privacy.jsonl"


def ledger_path(data: str, *, place: Path | None, named: str | None) -> Path:
    """Where the ledger of a data set lies: where somebody said, beside the file or folder, or among homespun's own
    files."""
    if named is not None:
        return Path(named)
    if place is not None and place.exists():
        return place.with_name(place.name + SUFFIX)
    own = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "homespun"
    return own / (quote(data, safe=" ") + SUFFIX)  # "org/votes" is one name, not a folder


class LedgerError(HomespunError):
    """What was told cannot be read or written, so nothing more is told."""


class BudgetError(InputError):
    """Another round would cost more than the data set may."""


@dataclass(frozen=True)
class Budget:
    """What a data set may cost, over all runs."""

    epsilon: float
    delta: float


@dataclass
class Ledger:
    """The ledger of the data set with this name. The file is made with the first debit."""

    path: Path
    data: str
    _known: tuple[Any, int] = field(default=(None, -1), repr=False)  # spending, release, budget -> room

    def spent(self) -> Counter[Release]:
        """Every release since the last reset, and how often."""
        return _spent(self._lines(_read(self.path)))

    def insecure(self) -> int:
        """How many of the releases since the last reset had noise that somebody else can draw again."""
        return sum(bool(entry.get("insecure")) for entry in _since_reset(self._lines(_read(self.path))))

    def debit(self, release: Release, *, run: str, budget: Budget | None = None, insecure: bool = False) -> None:
        """Write down that a round is about to be told; when this returns, the line is on disk."""
        with _locked(self.path) as file:
            whole = _whole_lines(file.read())
            spent = _spent(self._lines(whole))
            if budget is not None:
                self._require_room(release, spent, budget)
            first: list[dict[str, Any]] = [] if whole else [{"data": self.data, "at": _now()}]
            kind = {"insecure": True} if insecure else {}
            _append(file, at=len(whole), lines=[*first, {"release": vars(release), "run": run, "at": _now(), **kind}])

    def debits(self, *, run: str, since_reset: bool = False) -> int:
        """How often one run has written down that it is about to tell something; a reset undoes none of it,
        unless only what came after it is asked for."""
        lines = self._lines(_read(self.path))
        releases = _since_reset(lines) if since_reset else [entry for entry in lines if "release" in entry]
        return sum(entry.get("run") == run for entry in releases)

    def reset(self, name: str, *, reason: str = "") -> None:
        """Begin again at nothing; to be sure that it is meant, by the data set's name."""
        if name != self.data:
            raise UnknownNameError(
                f"{self.path}: this is the ledger of {self.data!r}, not of {name!r}. Nothing was reset."
            )
        with _locked(self.path) as file:
            whole = _whole_lines(file.read())
            self._lines(whole)
            if whole:
                _append(file, at=len(whole), lines=[{"reset": name, "reason": reason, "at": _now()}])

    def _require_room(self, release: Release, spent: Counter[Release], budget: Budget) -> None:
        known, room = self._known
        if room <= 0 or known != (spent, release, budget):  # first round, or somebody else spent in the meantime
            room = affordable(release, rounds=_MANY, spent=spent, budget=budget.epsilon, delta=budget.delta)
        if room == 0:
            cost = epsilon(spent, delta=budget.delta)
            raise BudgetError(
                f"{self.data}: its privacy budget is spent. So far epsilon {cost:.3f} at delta {budget.delta:g}; one "
                f"more round would cost more than {budget.epsilon:g}. The model stays as it is. A larger budget, or "
                "`homespun privacy reset` after everybody agreed, makes room."
            )
        self._known = ((spent + Counter({release: 1}), release, budget), room - 1)

    def _lines(self, text: bytes) -> list[dict[str, Any]]:
        lines = []
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                entry = json.loads(line)
                if not isinstance(entry, dict) or not entry.keys() & {"data", "release", "reset"}:
                    raise ValueError
                if "release" in entry:
                    Release(**entry["release"])
                lines.append(entry)
            except (ValueError, TypeError, SettingsError):
                raise LedgerError(
                    f"{self.path}: line {number} cannot be read, and it may stand for something that was told. Nothing "
                    "was changed. Restore the file from a copy."
                ) from None
        if lines and lines[0].get("data") != self.data:
            raise RunError(f"{self.path}: this is the ledger of {lines[0].get('data')!r}, not of {self.data!r}")
        return lines


def find_ledger(source: str, *, place: Path | None, named: Path | None = None) -> Ledger:
    """The ledger of data that are a file, a folder or a built-in corpus; its first line says whose it is."""
    path = ledger_path(source, place=place, named=None if named is None else str(named))
    first = _read(path).split(b"\n", 1)[0]
    if not first:
        elsewhere = "" if place is not None else " That of a corpus read from a folder lies beside it: name the folder."
        raise UnknownNameError(
            f"{path}: there is no ledger here, so nothing told of {source!r} with privacy is written down in it."
            f"{elsewhere} If a run named another place (privacy.ledger), give it with --ledger."
        )
    try:
        return Ledger(path, json.loads(first)["data"])
    except (ValueError, KeyError, TypeError):
        raise LedgerError(f"{path}: its first line cannot be read. Restore the file from a copy.") from None


_MANY = 64  # rounds that are looked ahead at once


def _spent(lines: list[dict[str, Any]]) -> Counter[Release]:
    return Counter(Release(**entry["release"]) for entry in _since_reset(lines))


def _since_reset(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The releases that count."""
    resets = [place for place, entry in enumerate(lines) if "reset" in entry]
    return [entry for entry in lines[resets[-1] if resets else 0 :] if "release" in entry]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _read(path: Path) -> bytes:
    try:
        return _whole_lines(path.read_bytes())
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error}). Nothing is told without it.") from error


def _whole_lines(text: bytes) -> bytes:
    return text[: text.rfind(b"\n") + 1]


@contextmanager
def _locked(path: Path) -> Iterator[Any]:
    """The file, for one process at a time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        with open_file(path, os.O_APPEND) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if new:
                sync(path.parent)
            file.seek(0)
            yield file
    except OSError as error:
        raise LedgerError(
            f"{path}: cannot be written ({error}), so the round is not told. Make room, or name another place for the "
            "ledger with the setting privacy.ledger."
        ) from error


def _append(file: Any, *, at: int, lines: list[dict[str, Any]]) -> None:
    file.truncate(at)  # what is left of a line that nobody waited for
    file.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    file.flush()
    os.fsync(file.fileno())
