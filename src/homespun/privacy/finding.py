"""The one ledger that a data set has: where it was asked for, beside the data, or where this machine's register says.

A data set that was renamed, linked, compressed or written in another format is the same data set and keeps its ledger.
One that has many rows in common with another is warned about. A second ledger for the same data is refused.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

from homespun.core.errors import SettingsError, UnknownNameError
from homespun.privacy.ledger import Ledger, ledger_path
from homespun.privacy.lines import LedgerError, whole_lines
from homespun.privacy.register import DataSet, Known, own_register


class PrivacyWarning(UserWarning):
    """Something about whose data these are that a person has to judge."""


def ledger_of(data: DataSet, *, named: str | None) -> Ledger:
    """The ledger that a private run debits. Raises where it is not the only one, or not whole."""
    register, usual = own_register(), ledger_path(data.name, place=data.place, named=None)
    asked = usual if named is None else Path(named)
    known = register.having(*data.marks)
    path = _only(data, [asked, usual, *(one.ledger for one in known)]) or asked
    _require_all_lines(known, path)
    if named is not None and path.resolve() != asked.resolve():
        raise SettingsError(
            f"{data.name}: this data set has its ledger at {path}, and a data set has one. Leave privacy.ledger out, "
            "or name that one."
        )
    if path.resolve() != asked.resolve():
        warnings.warn(
            f"{data.name}: these data are known here under another name. Their ledger is {path}.",
            PrivacyWarning,
            stacklevel=2,
        )
    alike = register.alike(data)
    _warn_of_copies(data, [pair for pair in alike if pair[0].ledger != path.resolve()])
    ours = bool(known) or any(one.ledger == path.resolve() for one, _ in alike)
    return Ledger(path, _name_in(path, data, ours=ours), register=register, data_set=data)


def ledger_of_unprotected(data: DataSet) -> Ledger | None:
    """The ledger that a run without privacy is written into, if its data have one."""
    register, usual = own_register(), ledger_path(data.name, place=data.place, named=None)
    known = register.having(*data.marks)
    path = _only(data, [usual, *(one.ledger for one in known)])
    if path is None:
        _warn_of_copies(data, register.alike(data))
        for one in known:
            warnings.warn(f"{_gone(one)} This run without privacy is not written down.", PrivacyWarning, stacklevel=2)
        return None
    _require_all_lines(known, path)
    return Ledger(path, _name_in(path, data, ours=bool(known)), register=register, data_set=data)


def ledger_to_read(data: DataSet, *, named: str | None) -> Ledger:
    """The ledger of a run that is only looked at; one that cannot be found counts as empty."""
    asked = ledger_path(data.name, place=data.place, named=named)
    known = own_register().having(*data.marks)
    path = next((path for path in (asked, *(one.ledger for one in known)) if whole_lines(path)), asked)
    return Ledger(path, _name_in(path, data, ours=True))


def find_ledger(source: str, *, place: Path | None, named: Path | None = None, new: bool = False) -> Ledger:
    """The ledger of data that are a file, a folder or a built-in corpus, for a person who looks at it or changes it.

    Its first line says whose it is. With `new`, there need not be one yet, or no longer.
    """
    register, data = own_register(), DataSet(source if place is None else place.name, place=place)
    usual = ledger_path(source, place=place, named=None if named is None else str(named))
    known = register.having(*data.marks) if named is None else []
    path = next((path for path in (usual, *(one.ledger for one in known)) if whole_lines(path)), None)
    if path is not None:
        return Ledger(path, _first_name(path), register=register, data_set=data)
    if known and new:
        return Ledger(known[0].ledger, known[0].data, register=register, data_set=data)
    if known:
        raise _gone(known[0])
    if new:
        return Ledger(usual, data.name, register=register, data_set=data)
    elsewhere = "" if place is not None else " That of a corpus read from a folder lies beside it: name the folder."
    raise UnknownNameError(
        f"{usual}: there is no ledger here, so nothing released of {source!r} with privacy is written down in it."
        f"{elsewhere} One that was written elsewhere is shown with --ledger."
    )


def joined(ledger: Ledger, other: Path, *, name: str) -> int:
    """Take another ledger of the same data into this one and put its file aside; how many lines that were."""
    if not whole_lines(other) or other.resolve() == ledger.path.resolve():
        raise UnknownNameError(f"{other}: there is no other ledger here.")
    found = ledger.join(Ledger(other, _first_name(other)), name=name)
    other.rename(other.with_name(other.name + ".joined"))
    own_register().forget(other.resolve())
    return found


def _only(data: DataSet, places: Sequence[Path]) -> Path | None:
    """The one ledger that is there, or None."""
    written = list({path.resolve(): path for path in places if whole_lines(path)}.values())
    if len(written) > 1:
        one, other = written[:2]
        raise SettingsError(
            f"{data.name}: this data set has two ledgers, {one} and {other}. A data set has one: take the second into "
            f"the first with `homespun privacy join`."
        )
    return written[0] if written else None


def _require_all_lines(known: Sequence[Known], path: Path) -> None:
    """Every ledger that was noted for these data is this one, with all lines that it had."""
    for one in known:
        lines = Ledger(path, one.data).lines() if whole_lines(path) else None
        if lines is None or (one.head not in lines.links and path.resolve() != one.ledger):
            raise _gone(one)
        if one.head not in lines.links:
            raise LedgerError(
                f"{path}: lines at its end are missing: the last one that was written is not there. Restore the file "
                f"from a newer copy, or start again with `homespun privacy reset`."
            )
        if path.resolve() != one.ledger:  # it was moved
            own_register().forget(one.ledger)


def _gone(known: Known) -> LedgerError:
    return LedgerError(
        f"{known.ledger}: the ledger of {known.data!r} was here and is gone, so what was released of these data is not "
        "known. Restore it from a copy, or start again with `homespun privacy reset`."
    )


def _name_in(path: Path, data: DataSet, *, ours: bool) -> str:
    """What a ledger calls the data set; where it is not known to be of these data, it has to call them by name."""
    return _first_name(path) if ours and whole_lines(path) else data.name


def _first_name(path: Path) -> str:
    try:
        return str(json.loads(whole_lines(path).split(b"\n", 1)[0])["data"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise LedgerError(f"{path}: its first line cannot be read. Restore the file from a copy.") from None


def _warn_of_copies(data: DataSet, alike: Sequence[tuple[Known, float]]) -> None:
    for one, share in alike:
        warnings.warn(
            f"{data.name}: about {share:.0%} or more of these rows are also in {one.data!r}, whose ledger is "
            f"{one.ledger}. What is released of the same people adds up, and no ledger has both. If this is an edited "
            f"copy, count it there: privacy.ledger={one.ledger}",
            PrivacyWarning,
            stacklevel=3,
        )
