"""What has been released of a data set, over all runs: a text file beside the data, one line for each round.

A round is debited before it is released, and the release waits until the line is on disk. So a kill in between costs
a round that was never released, and never the other way round. A line that is not whole at the end of the file was
never waited for; everything else that cannot be read, or that does not follow from the lines before it, is an error,
since it may stand for something that was released.

The budget belongs to the data set: the ledger holds its epsilon and delta once, whatever a run asks for. Nothing is
ever removed: a reset and another budget are lines too, and the lines before them stay to be read.

    {"data": NAME}                          the first line
    {"budget": {"epsilon": .., "delta": ..}}  what all runs may cost together; null: anything
    {"release": {"rate": .., ..}, "run": ..}  one round of a private run
    {"unprotected": RUN}                    a run without privacy: no epsilon bounds it
    {"reset": NAME}                         nothing before it counts
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
from homespun.privacy.accounting import ADJACENCY, Release, affordable, bounds
from homespun.privacy.lines import Entry, LedgerError, Lines, appending, read_on, whole_lines
from homespun.privacy.register import DataSet, Register, own_folder

__all__ = ["Budget", "BudgetError", "Ledger", "LedgerError", "ledger_path"]

SUFFIX = ".privacy.jsonl"
KINDS = {"data", "budget", "release", "unprotected", "reset"}
_MANY = 64  # rounds that are looked ahead at once


def ledger_path(data: str, *, place: Path | None, named: str | None) -> Path:
    """Where the ledger of a data set lies: where a setting says, beside the file or folder, or among homespun's own
    files."""
    if named is not None:
        return Path(named)
    if place is not None and place.exists():
        return place.with_name(place.name + SUFFIX)
    return own_folder() / (quote(data, safe=" ") + SUFFIX)  # "org/votes" is one name, not a folder


class BudgetError(InputError):
    """Another round would cost more than the data set may."""


@dataclass(frozen=True)
class Budget:
    """What a data set may cost, over all runs."""

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
    """The ledger of the data set with this name. The file is made with the first line."""

    path: Path
    data: str
    register: Register | None = field(default=None, repr=False)  # where this ledger is noted ...
    data_set: DataSet | None = field(default=None, repr=False)  # ... with these data
    _seen: Lines = field(default=Lines(), repr=False)
    _known: tuple[Any, int] = field(default=(None, -1), repr=False)  # spending, release, budget -> room

    def spent(self) -> Counter[Release]:
        """Every release since the last reset, and how often."""
        return _spent(self.lines().entries)

    def insecure(self) -> int:
        """How many of the releases since the last reset had noise that a seed gives again."""
        return sum(bool(entry.get("insecure")) for entry in _counted(self.lines().entries, "release"))

    def unprotected(self) -> int:
        """How many runs without privacy were trained on the data since the last reset."""
        return len(_counted(self.lines().entries, "unprotected"))

    def budget(self) -> Budget | None:
        """What the data set may cost."""
        return _budget(self.lines().entries)

    def debits(self, *, run: str, since_reset: bool = False) -> int:
        """How often one run was debited; a reset undoes none of it, unless only what came after it is asked for."""
        entries = self.lines().entries
        releases = _counted(entries, "release") if since_reset else [entry for entry in entries if "release" in entry]
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
        """Write down that a round is about to be released; when this returns, the line is on disk.

        A budget that is given becomes the data set's if it has none; another one than the data set's is refused.
        """
        with self._appending() as (entries, new):
            holds = self._holding(entries, budget)
            if holds is not None:
                self._require_room(release, entries, holds)
                if _budget(entries) is None:
                    new.append({"budget": asdict(holds), "by": run, "at": _now()})
            noted = {"insecure": insecure, "public_filters": list(public)}
            line = {"release": vars(release), "adjacency": ADJACENCY, "run": run, "at": _today()}
            new.append({**line, **{name: value for name, value in noted.items() if value}})

    def admit(self, *, run: str) -> None:
        """Write down, once, that a run without privacy is about to be trained: it costs more than any budget."""
        with self._appending() as (entries, new):
            self._require_no_budget(entries)
            if not any(entry["unprotected"] == run for entry in _counted(entries, "unprotected")):
                new.append({"unprotected": run, "at": _today()})

    def require_budget(self, asked: Budget | None, *, delta: float) -> None:
        """Raise unless a private run with this delta may spend what the data set has."""
        holds = self._holding(self.lines().entries, asked)
        if holds is not None and holds.delta != delta:
            raise SettingsError(
                self._other_budget(holds, f"delta {delta:g}", remedy=f"Set privacy.delta={holds.delta:g}")
            )

    def require_no_budget(self) -> None:
        """Raise where a run without privacy would cost more than the data set may."""
        self._require_no_budget(self.lines().entries)

    def set_budget(self, budget: Budget | None, *, name: str, reason: str = "") -> None:
        """Change what the data set may cost; to be sure that it is meant, by the data set's name. None: anything."""
        self._require_name(name)
        with self._appending() as (_, new):
            new.append({"budget": budget and asdict(budget), "by": "privacy budget", "reason": reason, "at": _now()})

    def reset(self, name: str, *, reason: str = "") -> None:
        """Begin again at nothing; to be sure that it is meant, by the data set's name. The budget stays."""
        self._require_name(name)
        with self._appending() as (_, new):
            new.append({"reset": name, "reason": reason, "at": _now()})

    def join(self, other: Ledger, *, name: str) -> int:
        """Write into this ledger what another ledger of the same data has beside it; how many lines that were."""
        self._require_name(name)
        with self._appending() as (entries, new):
            theirs = other.lines().entries
            pairs = list(zip(entries, theirs, strict=False))
            common = next((at for at, (ours, other_line) in enumerate(pairs) if ours != other_line), len(pairs))
            late = theirs[max(common, _since(theirs)) :]
            found = [entry for entry in late if "release" in entry or "unprotected" in entry]
            new.extend({**entry, "joined": str(other.path)} for entry in found)
        return len(found)

    def lines(self) -> Lines:
        return self._read(whole_lines(self.path))

    def _read(self, text: bytes) -> Lines:
        self._seen = read_on(self._seen, text, path=self.path, check=_require_sense)
        entries = self._seen.entries
        if entries and entries[0].get("data") != self.data:
            raise RunError(f"{self.path}: this is the ledger of {entries[0].get('data')!r}, not of {self.data!r}")
        return self._seen

    @contextmanager
    def _appending(self) -> Iterator[tuple[tuple[Entry, ...], list[Entry]]]:
        """What is written, and a list for what is to be; for one process at a time."""
        with appending(self.path) as (text, write):
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
                self.register.note(self.path, self.data_set, name=self.data, head=after.head)

    def _holding(self, entries: Sequence[Entry], asked: Budget | None) -> Budget | None:
        """The budget that counts: the data set's; or the run's, where the data set has none."""
        holds = _budget(entries)
        if holds is not None and asked is not None and asked != holds:
            raise SettingsError(self._other_budget(holds, f"a budget of {asked}", remedy="Leave privacy.budget out"))
        return holds or asked

    def _other_budget(self, holds: Budget, asked: str, *, remedy: str) -> str:
        return (
            f"{self.data}: this data set has a budget of {holds}, over all runs, and {asked} was asked for. {remedy}, "
            f"or change the data set's with `homespun privacy budget` ({self.path})."
        )

    def _require_no_budget(self, entries: Sequence[Entry]) -> None:
        holds = _budget(entries)
        if holds is not None:
            raise BudgetError(
                f"{self.data}: this data set has a privacy budget of {holds}, and nothing bounds what a run without "
                "privacy releases. Train with privacy, or lift the budget with `homespun privacy budget --lift` "
                f"({self.path})."
            )

    def _require_name(self, name: str) -> None:
        if name != self.data:
            raise UnknownNameError(
                f"{self.path}: this is the ledger of {self.data!r}, not of {name!r}. Nothing was changed."
            )

    def _require_room(self, release: Release, entries: Sequence[Entry], budget: Budget) -> None:
        spent, unprotected = _spent(entries), len(_counted(entries, "unprotected"))
        known, room = self._known
        if unprotected:
            room = 0
        elif room <= 0 or known != (spent, release, budget):  # first round, or another run spent in the meantime
            room = affordable(release, rounds=_MANY, spent=spent, budget=budget.epsilon, delta=budget.delta)
        if room == 0:
            cost = inf if unprotected else bounds(spent, delta=budget.delta).epsilon
            raise BudgetError(
                f"{self.data}: its privacy budget is spent. So far epsilon {cost:.3f} at delta {budget.delta:g}; one "
                f"more round would cost more than {budget.epsilon:g}. The model stays as it is. `homespun privacy "
                "budget` changes the budget; `homespun privacy reset` starts from zero for other people's data."
            )
        self._known = ((spent + Counter({release: 1}), release, budget), room - 1)


def _require_sense(entry: Any) -> None:
    """Raise unless a line is one of a ledger."""
    (kind,) = entry.keys() & KINDS
    if kind == "release":
        Release(**entry["release"])
    if kind == "budget" and entry["budget"] is not None:
        Budget(**entry["budget"])


def _spent(entries: Sequence[Entry]) -> Counter[Release]:
    return Counter(Release(**entry["release"]) for entry in _counted(entries, "release"))


def _counted(entries: Sequence[Entry], kind: str) -> list[Entry]:
    """The lines of a kind since the last reset."""
    return [entry for entry in entries[_since(entries) :] if kind in entry]


def _since(entries: Sequence[Entry]) -> int:
    """The place of the last reset, or of the first line."""
    return max((place for place, entry in enumerate(entries) if "reset" in entry), default=0)


def _budget(entries: Sequence[Entry]) -> Budget | None:
    found = [entry["budget"] for entry in entries if "budget" in entry]
    return Budget(**found[-1]) if found and found[-1] is not None else None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _today() -> str:
    """Of a release the day alone: how long a round took says how many came to it."""
    return datetime.now(UTC).date().isoformat()
