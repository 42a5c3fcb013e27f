"""The transforms of a run: those of its method, the DP mechanism of a private run, and the ledger of the data."""

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


def make_transforms(
    of_method: tuple[UpdateTransform, ...],
    settings: RunSettings,
    *,
    federation: Federation,
    schedule: Schedule,
    vault: Vault,
    progress: Show,
) -> Transforms:
    """`of_method` are the method's transforms."""
    data = identify_data_set(original(federation))
    if settings.privacy is None:  # a ledger is written only if the data have one already
        ledger = None if vault.read_only else find_ledger_without_privacy(data)
        return Transforms(of_method if ledger is None else (*of_method, UnprotectedUse(ledger, vault.token)))
    plan = _make_plan(settings.privacy, settings, schedule, progress=progress)
    once_per_pass = plan.local and settings.sampler == "shuffled"  # every client takes part once in a pass
    account = ReleaseAccount(
        plan,
        (find_ledger_to_read if vault.read_only else find_ledger_to_debit)(data, named=settings.privacy.ledger),
        run=vault.token,
        rounds_per_release=int(schedule.cohorts.rounds_per_pass) if once_per_pass else 1,
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
    # The mechanism is first on the client and last on the server: a transform of the method, such as a mask, wraps it.
    return Transforms((mechanism, *of_method))


def _make_plan(privacy: Privacy, settings: RunSettings, schedule: Schedule, *, progress: Show) -> PrivacyPlan:
    return plan_privacy(
        privacy,
        users=schedule.cohorts.users,
        cohort=schedule.cohorts.size,
        sampler=settings.sampler,
        rounds=schedule.total_rounds,
        progress=progress,
    )
