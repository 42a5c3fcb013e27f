"""Opens a run: a new one, or the one in a folder at its last commit, after all checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from homespun.core.devices import require_device
from homespun.core.errors import DataError, HomespunError, RunError, SettingsError, raise_faults
from homespun.core.messages import state_from_bytes
from homespun.core.method import ALL_EXAMPLES, Artefact, BuiltMethod, Method, Task, build
from homespun.core.progress import Show, silent
from homespun.core.roles import SHARED
from homespun.core.statistics import bests, sums
from homespun.data.columns import look_like_names
from homespun.data.dialogue import as_read
from homespun.data.federation import Federation
from homespun.data.source import DataSettings
from homespun.data.splits import original, require_conversations, select_part, withhold
from homespun.privacy.account import UnprotectedUse
from homespun.privacy.accounting import require_accountant
from homespun.privacy.settings import require_public_filters, validate_privacy
from homespun.runs.prototypes import make_prototypical_users
from homespun.runs.run import Run
from homespun.runs.schedule import first_shared_phase
from homespun.runs.settings import RunSettings
from homespun.runs.vault import VAULT_FILE, Vault
from homespun.system.json_files import SCHEMA, versions, write_json
from homespun.system.method_loading import load_method

SETTINGS_FILE = "settings.json"


def task_of(federation: Federation) -> Task:
    images = federation.examples(0).images if len(federation.users) else None
    profiles = getattr(federation, "profiles", None)
    return Task(
        classes=len(federation.labels),
        population=len(federation.users),
        contexts=len(federation.contexts),
        image=None if images is None else (images.shape[1], images.shape[2]),
        profile=() if profiles is None else profiles.sizes,
    )


def identity_of(method: Method, federation: Federation, settings: RunSettings) -> dict[str, Any]:
    """What identifies a run: a folder holds one identity, and another one is rejected."""
    return {
        "method": method.origin,
        "method_version": method.version,
        "method_settings": method.settings.identity(),
        **artefact_identity(method),
        "data": federation.name,
        "data_fingerprint": federation.fingerprint,
        "run": settings.identity(),
    }


def artefact_key(artefact: Artefact) -> str:
    """The key of an artefact's fingerprint in a run's identity."""
    return "built_on" if artefact.kind == "base model" else f"artefact {artefact.setting}"


def artefact_identity(method: Method) -> dict[str, str]:
    return {artefact_key(one): one.fingerprint for one in method.artefacts}


def method_for(
    federation: Federation, settings: RunSettings, *, method: str, values: Mapping[str, Any]
) -> tuple[Method, Federation, Federation]:
    """The method, sized for the participants; then the participants and the newcomers, as the method reads them."""
    share, seed = settings.withheld, settings.seed
    # The method decides who takes part: of replies, only users who have any. A method is loaded again only if the
    # number of participants then differs.
    likely, _ = withhold(federation, share=share, seed=seed)
    made = load_method(method, values, task_of(likely))
    if made.task.image is None:
        federation = as_read(federation, made.model.reads)
    participants, newcomers = withhold(federation, share=share, seed=seed, fold=settings.fold)
    if (task := task_of(participants)) != made.task:
        made = load_method(method, values, task, files=made.files)
    return made, participants, newcomers


def open_run(
    folder: Path | str,
    *,
    method: str,
    federation: Federation,
    settings: RunSettings,
    method_settings: Mapping[str, Any] | None = None,
    data: DataSettings | None = None,
    read_only: bool = False,
    progress: Show = silent,
    temporary: Any = None,
    data_fingerprint: str | None = None,
) -> Run:
    """Open a new run, or the one in this folder at its last commit. A different run in the folder is rejected.

    `data` says how the federation was loaded, unless `homespun.load` loaded it. Unless the run is only read, its
    settings are written to the folder, so that it can be reopened by the folder alone. `progress` is called with the
    progress of long work on this run. `temporary` is kept alive as long as the run. `data_fingerprint` is the one that
    the data must have, as the method reads them.
    """
    made, participants, newcomers = method_for(federation, settings, method=method, values=method_settings or {})
    federation = original(participants)  # as the method reads it
    _require_readable(made, federation, settings)
    if data_fingerprint not in (None, federation.fingerprint):
        raise _changed_data(folder, federation.name if data is None else data.source)
    if not read_only:
        _require_trainable(made, participants, newcomers, settings)
    _require_same_artefacts(Path(folder), made)
    if (Path(folder) / VAULT_FILE).exists():  # reject another run before building a model, which may be large
        Vault.open(Path(folder), identity=identity_of(made, federation, settings), read_only=True).close()
    built = build(made, seed=settings.seed)
    _require_protectable(built, settings, users=len(participants.users))
    _require_personalizable(built, settings)
    server_users = make_prototypical_users(built, federation, seed=settings.seed, device=settings.device)
    new = not (Path(folder) / VAULT_FILE).exists()
    vault = Vault.open(Path(folder), identity=identity_of(made, federation, settings), read_only=read_only)
    with ExitStack() as undo:
        undo.callback(vault.close)
        state = built.start() if vault.state is None else built.in_roles(state_from_bytes(vault.state))
        run = Run(
            participants,
            newcomers,
            built,
            settings,
            vault,
            state,
            server_users,
            data=data or getattr(federation, "loaded_by", None),
            progress=progress,
            temporary=temporary,
        )
        if new:
            try:
                _require_accounted(run)
            except HomespunError:  # so that the corrected command does not find a different run
                vault.remove()
                raise
        if not read_only:
            _write_settings(run)
        undo.pop_all()
    return run


def _changed_data(folder: Path | str, source: str) -> RunError:
    return RunError(
        f"{folder}: {source} has changed since the run was trained on it. Restore the former data, or train again in "
        "another folder."
    )


def _require_trainable(method: Method, participants: Federation, newcomers: Federation, settings: RunSettings) -> None:
    """Raise if the run can be read but not trained."""
    require_device(settings.device)
    _require_known_contexts(method, participants, newcomers, settings)
    if settings.privacy is not None:
        require_accountant()
        require_public_filters(settings.privacy, looks_across=getattr(original(participants), "looks_across", ()))


def _require_readable(method: Method, federation: Federation, settings: RunSettings) -> None:
    """Raise if the corpus lacks what the method scores or reads, or what the run splits it by."""
    method.scoring.require(federation.name, method=method.name)
    held = "texts" if method.task.image is None else "images"
    if method.model.medium != held:
        corpora = {
            "texts": "dialects, sotu or a file",
            "images": "digits or voices",
            "replies": "a file with conversations",
        }[method.model.reads]
        raise SettingsError(
            f"{federation.name}: {method.name} reads {method.model.reads}, but this corpus has {held}. Try {corpora}."
        )
    if settings.split_by == "conversation":
        require_conversations(federation)


def _require_protectable(built: BuiltMethod, settings: RunSettings, *, users: int) -> None:
    """Raise if differential privacy is asked for and cannot hold for what this method uploads."""
    if settings.privacy is None:
        return
    name = built.method.name
    if built.method.local.pooled:
        raise SettingsError(
            f"privacy: {name} trains on one server that has all users' examples, so there are no clients' updates to "
            "clip and noise. Leave privacy out, or use a federated method."
        )
    shared = (*built.partition.names(*SHARED), *sums(built.method.local.statistics))
    validate_privacy(settings.privacy, users=users, sampler=settings.sampler, shared=shared)
    if bests(built.method.local.statistics):
        raise SettingsError(
            f"privacy: {name} applies a value of a single client, which noise on a sum does not hide. Use a Sum "
            "statistic instead of Best (fedembed: map_step = mean), which is clipped, summed and noised like an update."
        )


def _require_personalizable(built: BuiltMethod, settings: RunSettings) -> None:
    """Raise if participants have nothing to keep of the final personalization."""
    if settings.final_personalization and built.method.personalize.generates:
        raise SettingsError(
            f"final_personalization: {built.method.name} generates private parameters anew for every text, so there is "
            "nothing to keep. Leave it out."
        )


def _require_accounted(run: Run) -> None:
    """Raise if a new run's releases cannot be accounted for, or exceed the budget of its data set's ledger."""
    dp = run.dp
    if dp is not None and dp.account is not None:
        first = first_shared_phase(run.built)
        if run.settings.rounds is None and first.steps is not None and first.batch < ALL_EXAMPLES:
            raise SettingsError(
                f"privacy: the number of rounds is public, but with {run.method.name} the number of rounds in an epoch "
                "depends on how many examples users have. Give rounds instead of epochs."
            )
        dp.account.require_budget()
    for one in run.transforms.chain:
        if isinstance(one, UnprotectedUse):
            one.ledger.require_no_budget()


def resolved_settings(run: Run) -> dict[str, Any]:
    """Everything the run was started with: enough to reopen it, or to repeat it elsewhere."""
    return {
        "schema": SCHEMA,
        "method": run.method.origin,
        "method_version": run.method.version,
        "method_settings": run.method.settings.model_dump(mode="json"),
        "run": run.settings.model_dump(mode="json"),
        "data": run.data and run.data.model_dump(mode="json"),  # null: the federation was given in Python
        "data_fingerprint": run.vault.identity["data_fingerprint"],
        "versions": versions(),
    }


def _write_settings(run: Run) -> None:
    """Write `settings.json`, unless the run is finished: then it keeps the settings it was trained with."""
    path = run.vault.path.parent / SETTINGS_FILE
    if not run.finished or not path.exists():
        write_json(path, resolved_settings(run))


def _require_same_artefacts(folder: Path, method: Method) -> None:
    """Raise if an artefact has changed since the run started: the same name may now refer to other weights."""
    if not method.artefacts or not (folder / VAULT_FILE).exists():
        return
    with Vault.open(folder, read_only=True) as vault:
        stored = vault.identity
    for one in method.artefacts:
        key = artefact_key(one)
        if stored.get("method_settings", {}).get(one.setting) == one.name and stored.get(key) != one.fingerprint:
            raise RunError(
                f"{folder}: the {one.kind} {one.name!r} is not the one that this run was trained with: its weights or "
                "sizes differ. Restore the former one under this name, or train again in another folder."
            )


def _require_known_contexts(
    method: Method, participants: Federation, newcomers: Federation, settings: RunSettings
) -> None:
    """Raise if a context is tested that no participant trains: its row of the context table would be untrained."""
    if "context" not in method.model.keys.values():
        return
    training = select_part(
        participants, "train", seed=settings.seed, fractions=settings.fractions, split_by=settings.split_by
    )
    missing = set(range(len(participants.contexts)))
    for position in range(len(training.users)):
        if not missing:  # usually after a few users
            return
        missing -= _contexts_of(training, position)
    tested: Counter[int] = Counter()  # users by context
    for federation in (participants, newcomers):
        for position in range(len(federation.users)):
            tested.update(missing & _contexts_of(federation, position))
    names = participants.contexts
    shown = {index: repr(names[index]) if look_like_names([names[index]]) else f"no. {index + 1}" for index in tested}

    def count_users(count: int) -> str:
        return f"{count} {'user' if count == 1 else 'users'}"

    faults = [
        f"context {shown[index]} is in no user's training part, but {count_users(count)} would be tested in it."
        for index, count in sorted(tested.items())
    ]
    if faults:
        remedy = "Leave out rare contexts (--data-set min_context_examples=50), or choose another seed or fold."
        raise_faults(DataError, participants.name, [*faults[:-1], f"{faults[-1]} {remedy}"])


def _contexts_of(federation: Federation, position: int) -> set[int]:
    found = federation.examples(position).contexts
    return set() if found is None else set(np.unique(found).tolist())
