"""The privacy ledger of a data set: every release of all runs, in a text file next to the data, one line per round.

A round is debited before it is released, and the release waits until the line is on disk. A kill in between may debit
a round that was never released, but no round is released without a debit. An incomplete last line belongs to a round
that was not released and is ignored. Any other line that cannot be read, or that breaks the hash chain, is an error,
because it may stand for a release.

The budget belongs to the data set: the ledger holds one epsilon and delta for all runs. The ledger is append-only: a
reset and a new budget are lines too, and the lines before them remain.

    {"data": NAME}                            the first line
    {"budget": {"epsilon": .., "delta": ..}}  the limit for all runs together; null: no limit
    {"release": {"rate": .., ..}, "run": ..}  one round of a private run
    {"unprotected": RUN}                      a run without privacy, whose epsilon is infinite
    {"reset": NAME}                           earlier lines no longer count
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from math import inf, isfinite
from pathlib import Path
from typing import Any
from urllib.parse import quote

from homespun.core.errors import InputError, RunError, SettingsError, UnknownNameError
from homespun.privacy.accounting import ADJACENCY, Release, compute_bounds, count_affordable_rounds
from homespun.privacy.lines import Entry, LedgerError, Lines, extend_lines, open_for_append, read_complete_lines
from homespun.privacy.register import DataSet, Register, homespun_folder

__all__ = ["Budget", "BudgetError", "Ledger", "LedgerError", "ledger_path"]

SUFFIX = ".privacy.jsonl"
KINDS = {"data", "budget", "release", "unprotected", "reset"}
_LOOKAHEAD = 64  # rounds whose cost is computed at once


def ledger_path(data: str, *, place: Path | None, named: str | None) -> Path:
    """The path of a data set's ledger: as set, next to the file or folder, or in homespun's data folder."""
    if named is not None:
        return Path(named)
    if place is not None and place.exists():
        return place.with_name(place.name + SUFFIX)
    return homespun_folder() / (quote(data, safe=" ") + SUFFIX)  # "org/votes" is one name, not a folder


class BudgetError(InputError):
    """Another round would exceed the privacy budget of the data set."""


@dataclass(frozen=True)
class Budget:
    """The privacy budget of a data set, for all runs together."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and isfinite(self.epsilon) and 0 < self.delta < 1):
            raise SettingsError(
                f"budget: epsilon {self.epsilon:g} at delta {self.delta:g}: expected a positive epsilon and a delta "
                "between 0 and 1"
            )

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g} at delta {self.delta:g}"


@dataclass
class Ledger:
    """The ledger of the data set with this name. The file is created with its first line."""

    path: Path
    data: str
    register: Register | None = field(default=None, repr=False)  # registers this ledger ...
    data_set: DataSet | None = field(default=None, repr=False)  # ... for these data
    _seen: Lines = field(default=Lines(), repr=False)
    _room: tuple[Any, int] = field(default=(None, -1), repr=False)  # (spending, release, budget), rounds that fit

    def spent(self) -> Counter[Release]:
        """Each release since the last reset, with the number of times it was made."""
        return _spent(self.lines().entries)

    def insecure(self) -> int:
        """The number of releases since the last reset whose noise came from a seed."""
        return sum(bool(entry.get("insecure")) for entry in _since_reset(self.lines().entries, "release"))

    def unprotected(self) -> int:
        """The number of runs without privacy on these data since the last reset."""
        return len(_since_reset(self.lines().entries, "unprotected"))

    def budget(self) -> Budget | None:
        """The budget of the data set, if it has one."""
        return _budget(self.lines().entries)

    def debits(self, *, run: str, since_reset: bool = False) -> int:
        """The number of debits of one run: all of them, or those since the last reset."""
        entries = self.lines().entries
        releases = (
            _since_reset(entries, "release") if since_reset else [entry for entry in entries if "release" in entry]
        )
        return sum(entry.get("run") == run for entry in releases)

    def debit(
        self,
        release: Release,
        *,
        run: str,
        budget: Budget | None = None,
        insecure: bool = False,
        public: Sequence[str] = (),
    ) -> None:
        """Record that a round is about to be released. The line is on disk when this returns.

        `budget` becomes the data set's budget if it has none, and must equal it otherwise.
        """
        with self._appending() as (entries, new):
            holds = self._effective_budget(entries, budget)
            if holds is not None:
                self._require_room(release, entries, holds)
                if _budget(entries) is None:
                    new.append({"budget": asdict(holds), "by": run, "at": _now()})
            noted = {"insecure": insecure, "public_filters": list(public)}
            line = {"release": vars(release), "adjacency": ADJACENCY, "run": run, "at": _today()}
            new.append({**line, **{name: value for name, value in noted.items() if value}})

    def record_unprotected_run(self, *, run: str) -> None:
        """Record, once, that a run without privacy starts training. It is rejected if the data set has a budget."""
        with self._appending() as (entries, new):
            self._require_no_budget(entries)
            if not any(entry["unprotected"] == run for entry in _since_reset(entries, "unprotected")):
                new.append({"unprotected": run, "at": _today()})

    def require_budget(self, asked: Budget | None, *, delta: float) -> None:
        """Raise unless the data set's budget, if any, has this delta and equals the requested one."""
        holds = self._effective_budget(self.lines().entries, asked)
        if holds is not None and holds.delta != delta:
            raise SettingsError(
                self._other_budget(holds, f"delta {delta:g}", remedy=f"Set privacy.delta={holds.delta:g}")
            )

    def require_no_budget(self) -> None:
        """Raise if the data set has a budget, which a run without privacy would exceed."""
        self._require_no_budget(self.lines().entries)

    def set_budget(self, budget: Budget | None, *, name: str, reason: str = "") -> None:
        """Change the budget; None removes it. `name` must be the data set's name, as a confirmation."""
        self._require_name(name)
        with self._appending() as (_, new):
            new.append({"budget": budget and asdict(budget), "by": "privacy budget", "reason": reason, "at": _now()})

    def reset(self, name: str, *, reason: str = "") -> None:
        """Set the spending to zero and keep the budget. `name` must be the data set's name, as a confirmation."""
        self._require_name(name)
        with self._appending() as (_, new):
            new.append({"reset": name, "reason": reason, "at": _now()})

    def join(self, other: Ledger, *, name: str) -> int:
        """Append the lines that only another ledger of the same data has. Return their number."""
        self._require_name(name)
        with self._appending() as (entries, new):
            theirs = other.lines().entries
            pairs = list(zip(entries, theirs, strict=False))
            common = next((at for at, (ours, other_line) in enumerate(pairs) if ours != other_line), len(pairs))
            late = theirs[max(common, _last_reset(theirs)) :]
            found = [entry for entry in late if "release" in entry or "unprotected" in entry]
            new.extend({**entry, "joined": str(other.path)} for entry in found)
        return len(found)

    def lines(self) -> Lines:
        return self._read(read_complete_lines(self.path))

    def _read(self, text: bytes) -> Lines:
        self._seen = extend_lines(self._seen, text, path=self.path, check=_check_entry)
        entries = self._seen.entries
        if entries and entries[0].get("data") != self.data:
            raise RunError(f"{self.path}: this is the ledger of {entries[0].get('data')!r}, not of {self.data!r}")
        return self._seen

    @contextmanager
    def _appending(self) -> Iterator[tuple[tuple[Entry, ...], list[Entry]]]:
        """Lock the file and give its entries and a list for new ones, which are written at the end of the block."""
        with open_for_append(self.path) as (text, write):
            before, new = self._read(text), list[Entry]()
            yield before.entries, new
            if not new:
                return
            first: list[Entry] = [] if before.entries else [{"data": self.data, "at": _now()}]
            after = before.with_new([*first, *new])
            if self.register is not None:
                self.register.prepare()
            write(after.text)
            self._seen = after
            if self.register is not None and self.data_set is not None:
                self.register.record(self.path, self.data_set, name=self.data, head=after.head)

    def _effective_budget(self, entries: Sequence[Entry], asked: Budget | None) -> Budget | None:
        """The budget of the data set or, if it has none, the one that the run asks for."""
        holds = _budget(entries)
        if holds is not None and asked is not None and asked != holds:
            raise SettingsError(self._other_budget(holds, f"a budget of {asked}", remedy="Remove privacy.budget"))
        return holds or asked

    def _other_budget(self, holds: Budget, asked: str, *, remedy: str) -> str:
        return (
            f"{self.data}: the budget of this data set is {holds} for all runs, but the run asks for {asked}. "
            f"{remedy}, or change the budget with `homespun privacy budget` ({self.path})."
        )

    def _require_no_budget(self, entries: Sequence[Entry]) -> None:
        holds = _budget(entries)
        if holds is not None:
            raise BudgetError(
                f"{self.data}: this data set has a privacy budget of {holds}, which a run without privacy would "
                "exceed. Train with privacy, or remove the budget with `homespun privacy budget --lift` "
                f"({self.path})."
            )

    def _require_name(self, name: str) -> None:
        if name != self.data:
            raise UnknownNameError(
                f"{self.path}: this is the ledger of {self.data!r}, not of {name!r}. Nothing was changed."
            )

    def _require_room(self, release: Release, entries: Sequence[Entry], budget: Budget) -> None:
        spent, unprotected = _spent(entries), len(_since_reset(entries, "unprotected"))
        known, room = self._room
        if unprotected:
            room = 0
        elif room <= 0 or known != (spent, release, budget):  # first round, or another run was debited
            room = count_affordable_rounds(
                release, rounds=_LOOKAHEAD, spent=spent, budget=budget.epsilon, delta=budget.delta
            )
        if room == 0:
            cost = inf if unprotected else compute_bounds(spent, delta=budget.delta).epsilon
            raise BudgetError(
                f"{self.data}: its privacy budget is spent: epsilon {cost:.3f} at delta {budget.delta:g} so far, and "
                f"one more round would exceed {budget.epsilon:g}. The model is unchanged. Change the budget with "
                "`homespun privacy budget`. If the data now belong to other users, start from zero with `homespun "
                "privacy reset`."
            )
        self._room = ((spent + Counter({release: 1}), release, budget), room - 1)


def _check_entry(entry: Any) -> None:
    """Raise unless a line is a valid ledger entry."""
    (kind,) = entry.keys() & KINDS
    if kind == "release":
        Release(**entry["release"])
    if kind == "budget" and entry["budget"] is not None:
        Budget(**entry["budget"])


def _spent(entries: Sequence[Entry]) -> Counter[Release]:
    return Counter(Release(**entry["release"]) for entry in _since_reset(entries, "release"))


def _since_reset(entries: Sequence[Entry], kind: str) -> list[Entry]:
    """The entries of one kind since the last reset."""
    return [entry for entry in entries[_last_reset(entries) :] if kind in entry]


def _last_reset(entries: Sequence[Entry]) -> int:
    """The index of the last reset, or 0."""
    return max((place for place, entry in enumerate(entries) if "reset" in entry), default=0)


def _budget(entries: Sequence[Entry]) -> Budget | None:
    found = [entry["budget"] for entry in entries if "budget" in entry]
    return Budget(**found[-1]) if found and found[-1] is not None else None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _today() -> str:
    """The date without the time, because the duration of a round reveals the size of its cohort."""
    return datetime.now(UTC).date().isoformat()
