"""The register of ledgers on this machine: one small file per ledger, in homespun's data folder.

It finds the ledger of a data set by the path of the data and by their content (the same rows under another name, in
another format, or compressed), and recognizes an edited copy of other data by a sketch of its rows. Paths, fingerprints
and sketches are stored as HMACs under a local key, so that the register does not reveal the data. It also stores the
hash of the ledger's last line, so that a truncated ledger is detected.
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

MIN_COMMON_SHARE = 1 / 8  # share of common sketch hashes from which one data set may be a copy of the other
MAX_SKETCHES = 8  # at most, the latest, of a data set whose file changes
_KEY, _KEY_BYTES = "key", 32


def homespun_folder() -> Path:
    """The folder of homespun's own files."""
    return Path(os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")) / "homespun"


@dataclass(frozen=True)
class DataSet:
    """Identifies the data that a ledger belongs to."""

    name: str
    fingerprint: str | None = None  # of the content, if it was read
    sketch: Sequence[str] = field(default=(), repr=False)  # hashes of some of its rows
    place: Path | None = None  # the file or folder it was read from

    @property
    def marks(self) -> tuple[str, ...]:
        """Two data sets that share a mark are the same data set."""
        where = name_mark(self.name) if self.place is None else place_mark(self.place)
        return (where,) if self.fingerprint is None else (where, f"content {self.fingerprint}")


def identify_data_set(corpus: Any) -> DataSet:
    """Identify a federation by its rows; one without rows (synthetic data, images) by its own fingerprint."""
    content, place = getattr(corpus, "content", None), getattr(corpus, "place", None)
    if content is None:
        return DataSet(corpus.name, corpus.fingerprint, place=place)
    return DataSet(corpus.name, content.fingerprint, content.sketch, place=place)


def place_mark(place: Path) -> str:
    return f"place {place.resolve()}"


def name_mark(name: str) -> str:
    return f"name {name}"


@dataclass(frozen=True)
class RegisteredLedger:
    """A ledger that was written on this machine. Its fields are those of its JSON file."""

    ledger: Path
    data: str  # the data set's name in the ledger
    marks: frozenset[str]
    sketches: tuple[frozenset[str], ...] = field(repr=False)
    head: str  # the hash of the last line

    def to_json(self) -> dict[str, Any]:
        sketches = [sorted(one) for one in self.sketches]
        return {**vars(self), "ledger": str(self.ledger), "marks": sorted(self.marks), "sketches": sketches}


@dataclass(frozen=True)
class Register:
    folder: Path

    def all(self) -> list[RegisteredLedger]:
        return [known for path in sorted(self.folder.glob("*.json")) if (known := self._read(path)) is not None]

    def find(self, *marks: str) -> list[RegisteredLedger]:
        """The ledgers of data sets that have one of these marks."""
        known = self.all()
        wanted = self._hmacs(marks) if known else frozenset()
        return [one for one in known if one.marks & wanted]

    def find_similar(self, data: DataSet) -> list[tuple[RegisteredLedger, float]]:
        """Ledgers of other data sets that share rows with these data, with the estimated share."""
        known = self.all()
        if not known:
            return []
        sketch, marks = self._hmacs(data.sketch), self._hmacs(data.marks)
        shares = [max((_common_share(sketch, other) for other in one.sketches), default=0.0) for one in known]
        pairs = zip(known, shares, strict=True)
        return [(one, share) for one, share in pairs if share >= MIN_COMMON_SHARE and not one.marks & marks]

    def record(self, ledger: Path, data: DataSet, *, name: str, head: str) -> None:
        """Store the path and the last line's hash of a ledger. The caller holds the ledger's lock."""
        ledger = ledger.resolve()
        self.prepare()
        marks, sketch = self._hmacs(data.marks), self._hmacs(data.sketch)
        known = RegisteredLedger(ledger, name, marks, (sketch,) if sketch else (), head)
        before = self._read(self._file(ledger))
        if before is not None:
            sketches = before.sketches if not sketch or sketch in before.sketches else (*before.sketches, sketch)
            known = replace(known, marks=before.marks | marks, sketches=sketches[-MAX_SKETCHES:])
        if known != before:
            self._write(self._file(ledger), json.dumps(known.to_json()).encode())

    def forget(self, ledger: Path) -> None:
        """Remove the entry of a ledger that is no longer at this path."""
        self._file(ledger).unlink(missing_ok=True)

    def _file(self, ledger: Path) -> Path:
        return self.folder / f"{hashlib.sha256(os.fsencode(ledger)).hexdigest()[:32]}.json"

    def _read(self, path: Path) -> RegisteredLedger | None:
        try:
            found = json.loads(path.read_bytes())
            return RegisteredLedger(
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
                f"{path}: cannot be read. It links a data set to its ledger. Restore it from a backup, or remove it: "
                "the data set is then recognized by its path alone until its next private run."
            ) from None

    def _write(self, path: Path, content: bytes, *, replacing: bool = True) -> None:
        """Write atomically, readable by the current user only."""
        draft = path.with_name(f".{secrets.token_hex(8)}.part")
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            (os.replace if replacing else os.link)(draft, path)
        except FileExistsError:  # another process has written it
            pass
        except OSError as error:
            raise _not_writable(self.folder, error) from error
        finally:
            draft.unlink(missing_ok=True)

    def prepare(self) -> None:
        """Create the folder and the key, or raise if the folder is not writable."""
        try:
            if not self.folder.is_absolute():
                raise OSError("the user has no home folder")
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _not_writable(self.folder, error) from error
        if not (self.folder / _KEY).exists():
            self._write(self.folder / _KEY, secrets.token_bytes(_KEY_BYTES), replacing=False)

    def _hmacs(self, texts: Sequence[str]) -> frozenset[str]:
        """HMACs under the local key; empty if there is no key, because then the register is empty too."""
        try:
            key = (self.folder / _KEY).read_bytes()
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            raise LedgerError(f"{self.folder / _KEY}: cannot be read ({error}).") from error
        if len(key) != _KEY_BYTES:
            raise LedgerError(f"{self.folder / _KEY}: damaged. Restore it from a backup.")
        encoded = (text.encode("utf-8", "surrogatepass") for text in texts)
        return frozenset(hmac.digest(key, text, "sha256").hex()[:32] for text in encoded)


def local_register() -> Register:
    return Register(homespun_folder() / "ledgers")


def _common_share(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / min(len(one), len(other)) if one and other else 0.0


def _not_writable(folder: Path, error: OSError) -> LedgerError:
    return LedgerError(
        f"{folder}: cannot be written ({error}). Private runs need it to find the ledger of their data. Make it "
        "writable, or set XDG_DATA_HOME to a writable folder."
    )
