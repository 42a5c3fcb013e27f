"""Which ledger a data set has, whatever its file is called: one small file for each ledger among homespun's own files.

A data set is known by its place, by its content (the same rows under another name, in another format, compressed) and,
by a sketch of its rows, as an edited copy of another. All of it is kept as HMACs under a key of this person's own, so
that the register does not tell what is in the data. It also notes the last line of the ledger, so that lines cut off at
its end are missed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from homespun.privacy.lines import LedgerError

ALIKE = 1 / 8  # of the sketches of two data sets: from here on one may be a copy of the other
SKETCHES = 8  # of a data set that changes in its place, the latest are kept
_KEY, _KEY_BYTES = "key", 32


def own_folder() -> Path:
    """Where homespun keeps files of its own."""
    return Path(os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")) / "homespun"


@dataclass(frozen=True)
class DataSet:
    """What a ledger is kept for."""

    name: str
    fingerprint: str | None = None  # of its content, if it was read
    sketch: Sequence[str] = field(default=(), repr=False)  # hashes of some of its rows
    place: Path | None = None  # the file or folder it was read from

    @property
    def marks(self) -> tuple[str, ...]:
        """By any of these it is the same data set."""
        where = name_mark(self.name) if self.place is None else place_mark(self.place)
        return (where,) if self.fingerprint is None else (where, f"content {self.fingerprint}")


def data_set_of(corpus: Any) -> DataSet:
    """What tells a federation again. One without rows of its own, a formula or images, goes by its own fingerprint."""
    content, place = getattr(corpus, "content", None), getattr(corpus, "place", None)
    if content is None:
        return DataSet(corpus.name, corpus.fingerprint, place=place)
    return DataSet(corpus.name, content.fingerprint, content.sketch, place=place)


def place_mark(place: Path) -> str:
    return f"place {place.resolve()}"


def name_mark(name: str) -> str:
    return f"name {name}"


@dataclass(frozen=True)
class Known:
    """A ledger that was written on this machine."""

    ledger: Path
    data: str  # as the ledger calls it
    marks: frozenset[str]
    sketches: tuple[frozenset[str], ...] = field(repr=False)
    head: str  # its last line's hash

    def to_json(self) -> dict[str, Any]:
        sketches = [sorted(one) for one in self.sketches]
        return {**vars(self), "ledger": str(self.ledger), "marks": sorted(self.marks), "sketches": sketches}


@dataclass(frozen=True)
class Register:
    folder: Path

    def all(self) -> list[Known]:
        return [known for path in sorted(self.folder.glob("*.json")) if (known := self._read(path)) is not None]

    def having(self, *marks: str) -> list[Known]:
        """The ledgers of data sets with one of these marks."""
        known = self.all()
        wanted = self._hidden(marks) if known else frozenset()
        return [one for one in known if one.marks & wanted]

    def alike(self, data: DataSet) -> list[tuple[Known, float]]:
        """Ledgers of other data sets that have rows in common with these, and how large a share about."""
        known = self.all()
        if not known:
            return []
        sketch, marks = self._hidden(data.sketch), self._hidden(data.marks)
        shares = [max((_common(sketch, other) for other in one.sketches), default=0.0) for one in known]
        pairs = zip(known, shares, strict=True)
        return [(one, share) for one, share in pairs if share >= ALIKE and not one.marks & marks]

    def note(self, ledger: Path, data: DataSet, *, name: str, head: str) -> None:
        """Remember where the ledger of a data set is and what its last line is; its writer holds the ledger's lock."""
        ledger = ledger.resolve()
        self.prepare()
        marks, sketch = self._hidden(data.marks), self._hidden(data.sketch)
        known = Known(ledger, name, marks, (sketch,) if sketch else (), head)
        before = self._read(self._file(ledger))
        if before is not None:
            sketches = before.sketches if not sketch or sketch in before.sketches else (*before.sketches, sketch)
            known = replace(known, marks=before.marks | marks, sketches=sketches[-SKETCHES:])
        if known != before:
            self._write(self._file(ledger), json.dumps(known.to_json()).encode())

    def forget(self, ledger: Path) -> None:
        """A ledger that is at this place no more."""
        self._file(ledger).unlink(missing_ok=True)

    def _file(self, ledger: Path) -> Path:
        return self.folder / f"{hashlib.sha256(os.fsencode(ledger)).hexdigest()[:32]}.json"

    def _read(self, path: Path) -> Known | None:
        try:
            found = json.loads(path.read_bytes())
            return Known(
                Path(found["ledger"]),
                str(found["data"]),
                frozenset(found["marks"]),
                tuple(map(frozenset, found["sketches"])),
                str(found["head"]),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            raise LedgerError(
                f"{path}: cannot be read. It says which data set has which ledger. Restore it from a copy, or remove "
                "it: until its next private run the data set is then known by its place alone."
            ) from None

    def _write(self, path: Path, content: bytes, *, replacing: bool = True) -> None:
        """Whole or not at all, for this person alone."""
        draft = path.with_name(f".{secrets.token_hex(8)}.part")
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            (os.replace if replacing else os.link)(draft, path)
        except FileExistsError:  # another process was first
            pass
        except OSError as error:
            raise _not_writable(self.folder, error) from error
        finally:
            draft.unlink(missing_ok=True)

    def prepare(self) -> None:
        """Make the folder and the key, or raise where nothing could be noted."""
        try:
            if not self.folder.is_absolute():
                raise OSError("there is no home folder")
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _not_writable(self.folder, error) from error
        if not (self.folder / _KEY).exists():
            self._write(self.folder / _KEY, secrets.token_bytes(_KEY_BYTES), replacing=False)

    def _hidden(self, texts: Sequence[str]) -> frozenset[str]:
        """Under this person's key; nothing where there is none yet, because nothing was noted either."""
        try:
            key = (self.folder / _KEY).read_bytes()
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            raise LedgerError(f"{self.folder / _KEY}: cannot be read ({error}).") from error
        if len(key) != _KEY_BYTES:
            raise LedgerError(f"{self.folder / _KEY}: damaged. Restore it from a copy.")
        encoded = (text.encode("utf-8", "surrogatepass") for text in texts)
        return frozenset(hmac.digest(key, text, "sha256").hex()[:32] for text in encoded)


def own_register() -> Register:
    return Register(own_folder() / "ledgers")


def _common(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / min(len(one), len(other)) if one and other else 0.0


def _not_writable(folder: Path, error: OSError) -> LedgerError:
    return LedgerError(
        f"{folder}: cannot be written ({error}). homespun remembers there which ledger a data set has, and releases "
        "nothing without it. Make it writable, or set XDG_DATA_HOME to a folder that is."
    )
