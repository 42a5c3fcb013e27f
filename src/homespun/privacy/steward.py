"""What a private run may release, in one place: each release is written into the ledger first, then made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, sqrt

from homespun.core.messages import Broadcast, Update
from homespun.privacy.accounting import Release
from homespun.privacy.guard import Guard
from homespun.privacy.ledger import Ledger, LedgerError
from homespun.privacy.mechanism import in_types_of, released_centrally
from homespun.privacy.noise import secure_normal, seeded_normal
from homespun.privacy.settings import Plan


@dataclass
class Steward:
    plan: Plan
    ledger: Ledger
    run: str  # as it is called in the ledger
    seed: int  # used where the plan is insecure, and nowhere else
    # With noise of their own and everybody once a turn, the rounds of a turn are of different people, and cost what one
    # of them costs.
    rounds_per_release: int = 1
    committed: int = 0  # rounds of the run that are on disk
    public: tuple[str, ...] = ()  # filters of the data whose outcome is stated to be public
    _last: int | None = None  # the round that was paid for last, or that a turn had paid for

    @property
    def guard(self) -> Guard:
        """What every home does to its update before it leaves."""
        return Guard(
            self.plan.clip,
            local_noise=self.plan.noise_multiplier if self.plan.local else None,
            insecure_seed=self.seed if self.plan.settings.insecure else None,
        )

    def before_work(self, broadcast: Broadcast) -> None:
        """What homes noise themselves is told when it leaves them."""
        if self._last is None:  # before minutes of work, of which nothing could be released
            self.require_budget()
            self._require_paid()
        if self.plan.local:
            self._debit(broadcast.round)

    def released(self, total: Update, broadcast: Broadcast) -> Update:
        """The cohort's sum as it may be told, and how much noise is on it."""
        plan = self.plan
        deviations = plan.clip.deviations([*total.federated, *total.keyed], noise_multiplier=plan.noise_multiplier)
        if plan.local:  # every client added its own
            noise = {name: sqrt(total.clients) * one for name, one in deviations.items()}
            return replace(in_types_of(broadcast, total), noise=noise)
        self._debit(broadcast.round)
        noisy = released_centrally(
            total,
            broadcast,
            plan.clip,
            noise_multiplier=plan.noise_multiplier,
            expected=plan.expected,
            normal=seeded_normal(self.seed, "central", broadcast.round) if plan.settings.insecure else secure_normal,
        )
        return replace(noisy, noise=deviations)

    def _debit(self, round: int) -> None:
        """A turn is paid for with its first round. In its middle, a round counts again that is the first one after
        opening or is tried once more, because its people may have sent before, and one that follows a reset."""
        in_turn = self._last is not None and round > self._last and round % self.rounds_per_release
        if not in_turn or self.ledger.debits(run=self.run, since_reset=True) == 0:
            insecure = self.plan.settings.insecure
            plan = self.plan
            self.ledger.debit(plan.release, run=self.run, budget=plan.budget, insecure=insecure, public=self.public)
        self._last = round

    def spending(self, *, rounds: int) -> dict[Release, int]:
        """What this many rounds have released of any user, those included that a kill undid."""
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
