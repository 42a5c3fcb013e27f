"""The transforms of a run: its method's own, the DP mechanism of a private run, and the ledger of the data."""

from __future__ import annotations

from homespun.core.progress import Show
from homespun.core.transforms import Transforms, UpdateTransform
from homespun.data.federation import Federation
from homespun.data.splits import original
from homespun.privacy.account import ReleaseAccount, UnprotectedUse
from homespun.privacy.dp import DpMechanism
from homespun.privacy.ledger_lookup import find_ledger_to_debit, find_ledger_to_read, find_ledger_without_privacy
from homespun.privacy.register import identify_data_set
from homespun.privacy.settings import Privacy, PrivacyPlan, plan_privacy
from homespun.runs.schedule import Schedule
from homespun.runs.settings import RunSettings
from homespun.runs.vault import Vault


def run_transforms(
    own: tuple[UpdateTransform, ...],
    settings: RunSettings,
    *,
    federation: Federation,
    schedule: Schedule,
    vault: Vault,
    progress: Show,
) -> Transforms:
    """`own` are the method's."""
    data = identify_data_set(original(federation))
    if settings.privacy is None:  # the ledger of the data is written only where there is one already
        ledger = None if vault.read_only else find_ledger_without_privacy(data)
        return Transforms(own if ledger is None else (*own, UnprotectedUse(ledger, vault.token)))
    plan = _plan(settings.privacy, settings, schedule, progress=progress)
    in_turns = plan.local and settings.sampler == "shuffled"
    account = ReleaseAccount(
        plan,
        (find_ledger_to_read if vault.read_only else find_ledger_to_debit)(data, named=settings.privacy.ledger),
        run=vault.token,
        rounds_per_release=int(schedule.cohorts.rounds_per_turn) if in_turns else 1,
        committed=vault.round,
        public=getattr(original(federation), "looks_across", ()),
    )
    mechanism = DpMechanism(
        plan.clip,
        plan.noise_multiplier,
        local=plan.local,
        expected=plan.expected,
        insecure_seed=settings.seed if plan.settings.insecure else None,
        account=account,
    )
    # First on the client and last on the server: what a method does to updates, a mask for instance, is around it.
    return Transforms((mechanism, *own))


def _plan(privacy: Privacy, settings: RunSettings, schedule: Schedule, *, progress: Show) -> PrivacyPlan:
    return plan_privacy(
        privacy,
        users=schedule.cohorts.users,
        cohort=schedule.cohorts.size,
        sampler=settings.sampler,
        rounds=schedule.total_rounds,
        progress=progress,
    )
