"""What a private run has released: each release is written into the data set's ledger before it is made."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from homespun.core.messages import Broadcast
from homespun.core.transforms import UpdateTransform
from homespun.privacy.accounting import Release
from homespun.privacy.ledger import Ledger, LedgerError
from homespun.privacy.settings import Plan


@dataclass
class ReleaseAccount:
    """Debits a run's releases and compares them with the ledger."""

    plan: Plan
    ledger: Ledger
    run: str  # as it is called in the ledger
    # With noise at the client and each client once a turn, the rounds of a turn are of different users, and cost what
    # one of them costs.
    rounds_per_release: int = 1
    committed: int = 0  # rounds of the run that are on disk
    public: tuple[str, ...] = ()  # filters of the data whose outcome is stated to be public
    _last: int | None = None  # the last round that was paid for, or that a turn had paid for

    def open(self) -> None:
        """Before the first round of this process: the budget is the data set's, and earlier releases are paid for."""
        if self._last is None:  # before minutes of work, of which nothing could be released
            self.require_budget()
            self._require_paid()

    def debit(self, round: int) -> None:
        """A turn is paid for with its first round. In its middle, a round counts again that is the first one after
        opening or is tried once more, because its clients may have sent before, and one that follows a reset."""
        in_turn = self._last is not None and round > self._last and round % self.rounds_per_release
        if not in_turn or self.ledger.debits(run=self.run, since_reset=True) == 0:
            plan = self.plan
            self.ledger.debit(
                plan.release, run=self.run, budget=plan.budget, insecure=plan.settings.insecure, public=self.public
            )
        self._last = round

    def spending(self, *, rounds: int) -> dict[Release, int]:
        """What this many rounds have released of any user, including rounds that a kill undid."""
        return {self.plan.release: max(self._releases(rounds), self.ledger.debits(run=self.run))}

    def require_budget(self) -> None:
        """Raise where the data set has another budget than this run is to keep to."""
        self.ledger.require_budget(self.plan.budget, delta=self.plan.settings.delta)

    def _require_paid(self) -> None:
        """Raise where fewer releases are written down than were made."""
        made, debited = self._releases(self.committed), self.ledger.debits(run=self.run)
        if debited < made:
            raise LedgerError(
                f"{self.ledger.path}: this run has made {made} releases in {self.committed} rounds, and the ledger has "
                f"{debited} of them. Lines are missing, or it is not the ledger that the run began with. Restore it "
                "from a copy."
            )

    def _releases(self, rounds: int) -> int:
        return ceil(rounds / self.rounds_per_release)


@dataclass(frozen=True)
class UnprotectedUse(UpdateTransform):
    """Records in a data set's ledger that a run without differential privacy trains on it. Changes no update."""

    ledger: Ledger
    run: str

    def before_round(self, broadcast: Broadcast) -> None:
        self.ledger.admit(run=self.run)
