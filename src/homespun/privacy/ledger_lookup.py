"""Finds the ledger of a data set: at the path in the settings, next to the data, or in this machine's register.

A data set that was renamed, linked, compressed or converted to another format is the same data set and keeps its
ledger. A data set that shares many rows with another one causes a warning. A second ledger for the same data is an
error.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

from homespun.core.errors import SettingsError, UnknownNameError
from homespun.privacy.ledger import Ledger, ledger_path
from homespun.privacy.lines import LedgerError, read_complete_lines
from homespun.privacy.register import DataSet, RegisteredLedger, local_register


class PrivacyWarning(UserWarning):
    """The data may be the same as other data with a ledger; the user has to decide."""


def find_ledger_to_debit(data: DataSet, *, named: str | None) -> Ledger:
    """The ledger that a private run debits. Raises if the data have several ledgers, or if lines are missing."""
    register, usual = local_register(), ledger_path(data.name, place=data.place, named=None)
    asked = usual if named is None else Path(named)
    known = register.find(*data.marks)
    path = _only_existing(data, [asked, usual, *(one.ledger for one in known)]) or asked
    _require_all_lines(known, path)
    if named is not None and path.resolve() != asked.resolve():
        raise SettingsError(
            f"{data.name}: the ledger of this data set is {path}, and a data set can have only one. Remove the "
            "setting privacy.ledger, or set it to that path."
        )
    if path.resolve() != asked.resolve():
        warnings.warn(
            f"{data.name}: the same data were used before under another name. Their ledger is {path}.",
            PrivacyWarning,
            stacklevel=2,
        )
    similar = register.find_similar(data)
    _warn_of_copies(data, [pair for pair in similar if pair[0].ledger != path.resolve()])
    ours = bool(known) or any(one.ledger == path.resolve() for one, _ in similar)
    return Ledger(path, _name_in(path, data, ours=ours), register=register, data_set=data)


def find_ledger_without_privacy(data: DataSet) -> Ledger | None:
    """The ledger that records a run without privacy; None if the data have none."""
    register, usual = local_register(), ledger_path(data.name, place=data.place, named=None)
    known = register.find(*data.marks)
    path = _only_existing(data, [usual, *(one.ledger for one in known)])
    if path is None:
        _warn_of_copies(data, register.find_similar(data))
        for one in known:
            warnings.warn(f"{_missing(one)} This run without privacy is not recorded.", PrivacyWarning, stacklevel=2)
        return None
    _require_all_lines(known, path)
    return Ledger(path, _name_in(path, data, ours=bool(known)), register=register, data_set=data)


def find_ledger_to_read(data: DataSet, *, named: str | None) -> Ledger:
    """The ledger of a run that is opened read-only; a ledger that does not exist counts as empty."""
    asked = ledger_path(data.name, place=data.place, named=named)
    known = local_register().find(*data.marks)
    path = next((path for path in (asked, *(one.ledger for one in known)) if read_complete_lines(path)), asked)
    return Ledger(path, _name_in(path, data, ours=True))


def find_ledger_by_source(source: str, *, place: Path | None, named: Path | None = None, new: bool = False) -> Ledger:
    """The ledger of a file, a folder or a built-in corpus, for the `homespun privacy` commands.

    Its first line names the data set. With `new`, the ledger does not have to exist.
    """
    register, data = local_register(), DataSet(source if place is None else place.name, place=place)
    usual = ledger_path(source, place=place, named=None if named is None else str(named))
    known = register.find(*data.marks) if named is None else []
    path = next((path for path in (usual, *(one.ledger for one in known)) if read_complete_lines(path)), None)
    if path is not None:
        return Ledger(path, _first_name(path), register=register, data_set=data)
    if known and new:
        return Ledger(known[0].ledger, known[0].data, register=register, data_set=data)
    if known:
        raise _missing(known[0])
    if new:
        return Ledger(usual, data.name, register=register, data_set=data)
    elsewhere = "" if place is not None else " If the corpus was read from a folder, give that folder instead."
    raise UnknownNameError(
        f"{usual}: no such ledger, so no private run on {source!r} is recorded here.{elsewhere} "
        "If the ledger is elsewhere, give its path with --ledger."
    )


def join_ledgers(ledger: Ledger, other: Path, *, name: str) -> int:
    """Merge another ledger of the same data into this one and rename its file. Return the number of merged lines."""
    if not read_complete_lines(other) or other.resolve() == ledger.path.resolve():
        raise UnknownNameError(f"{other}: no such ledger, or the same ledger.")
    found = ledger.join(Ledger(other, _first_name(other)), name=name)
    other.rename(other.with_name(other.name + ".joined"))
    local_register().forget(other.resolve())
    return found


def _only_existing(data: DataSet, places: Sequence[Path]) -> Path | None:
    """The one ledger that exists, or None."""
    written = list({path.resolve(): path for path in places if read_complete_lines(path)}.values())
    if len(written) > 1:
        one, other = written[:2]
        raise SettingsError(
            f"{data.name}: this data set has two ledgers, {one} and {other}, and it can have only one. Merge the "
            "second into the first with `homespun privacy join`."
        )
    return written[0] if written else None


def _require_all_lines(known: Sequence[RegisteredLedger], path: Path) -> None:
    """Raise unless each ledger registered for these data is the one at `path` and has lost no line."""
    for one in known:
        lines = Ledger(path, one.data).lines() if read_complete_lines(path) else None
        if lines is None or (one.head not in lines.links and path.resolve() != one.ledger):
            raise _missing(one)
        if one.head not in lines.links:
            raise LedgerError(
                f"{path}: the last line that was written is missing, so the file was truncated. Restore it from a "
                "newer backup, or start from zero with `homespun privacy reset`."
            )
        if path.resolve() != one.ledger:  # it was moved
            local_register().forget(one.ledger)


def _missing(known: RegisteredLedger) -> LedgerError:
    return LedgerError(
        f"{known.ledger}: the ledger of {known.data!r} is missing, so the privacy spent on these data is unknown. "
        "Restore it from a backup, or start from zero with `homespun privacy reset`."
    )


def _name_in(path: Path, data: DataSet, *, ours: bool) -> str:
    """The data set's name in the ledger. A ledger that is not known to belong to these data must use `data.name`."""
    return _first_name(path) if ours and read_complete_lines(path) else data.name


def _first_name(path: Path) -> str:
    try:
        return str(json.loads(read_complete_lines(path).split(b"\n", 1)[0])["data"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise LedgerError(f"{path}: its first line cannot be read. Restore the file from a backup.") from None


def _warn_of_copies(data: DataSet, similar: Sequence[tuple[RegisteredLedger, float]]) -> None:
    for one, share in similar:
        warnings.warn(
            f"{data.name}: at least about {share:.0%} of these rows are also in {one.data!r}, whose ledger is "
            f"{one.ledger}. The privacy costs of the same users add up, but neither ledger records both. If this is an "
            f"edited copy, use the same ledger: privacy.ledger={one.ledger}",
            PrivacyWarning,
            stacklevel=3,
        )
