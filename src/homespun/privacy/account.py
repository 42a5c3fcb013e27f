"""Records each release of a private run in the data set's ledger, before the release is made."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from homespun.core.messages import Broadcast
from homespun.core.transforms import UpdateTransform
from homespun.privacy.accounting import Release
from homespun.privacy.ledger import Ledger, LedgerError
from homespun.privacy.settings import PrivacyPlan


@dataclass
class ReleaseAccount:
    """Debits the releases of one run and checks them against the ledger."""

    plan: PrivacyPlan
    ledger: Ledger
    run: str  # the run's name in the ledger
    # With local noise and shuffled cohorts, the rounds of one pass over the users involve different users, so that the
    # whole pass costs as much as one of its rounds (parallel composition).
    rounds_per_release: int = 1
    committed: int = 0  # rounds of the run that are committed to disk
    public: tuple[str, ...] = ()  # data filters whose outcome is declared public
    _last: int | None = None  # the last round that has been debited, on its own or with its pass

    def open(self) -> None:
        """Check the budget and the ledger once, before the first round of this process."""
        if self._last is None:  # fail early, not after minutes of training
            self.require_budget()
            self._require_debited()

    def debit(self, round: int) -> None:
        """Debit a round. The first round of a pass pays for the whole pass.

        A round inside a pass is debited again if it is the first one of this process or is repeated, because its
        clients may have uploaded before, and if it follows a reset of the ledger.
        """
        already_paid = self._last is not None and round > self._last and round % self.rounds_per_release
        if not already_paid or self.ledger.debits(run=self.run, since_reset=True) == 0:
            plan = self.plan
            self.ledger.debit(
                plan.release, run=self.run, budget=plan.budget, insecure=plan.settings.insecure, public=self.public
            )
        self._last = round

    def spending(self, *, rounds: int) -> dict[Release, int]:
        """The releases of this many rounds, including rounds that were debited and then lost to a kill."""
        return {self.plan.release: max(self._releases(rounds), self.ledger.debits(run=self.run))}

    def require_budget(self) -> None:
        """Raise if the budget of the data set differs from the one that this run asks for."""
        self.ledger.require_budget(self.plan.budget, delta=self.plan.settings.delta)

    def _require_debited(self) -> None:
        """Raise if the ledger holds fewer releases of this run than the run has made."""
        made, debited = self._releases(self.committed), self.ledger.debits(run=self.run)
        if debited < made:
            raise LedgerError(
                f"{self.ledger.path}: the run made {made} releases in {self.committed} rounds, but only {debited} "
                f"are recorded. Lines are missing, or this is not the ledger that the run started with. Restore the "
                "ledger from a backup."
            )

    def _releases(self, rounds: int) -> int:
        return ceil(rounds / self.rounds_per_release)


@dataclass(frozen=True)
class UnprotectedUse(UpdateTransform):
    """Records in a data set's ledger that a run without differential privacy trains on it. Changes no update."""

    ledger: Ledger
    run: str

    def before_round(self, broadcast: Broadcast) -> None:
        self.ledger.record_unprotected_run(run=self.run)
