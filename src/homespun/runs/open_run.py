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
from homespun.data.federation import Federation
from homespun.data.source import DataSettings
from homespun.data.splits import select_part, withhold
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
    return Task(
        classes=len(federation.labels),
        population=len(federation.users),
        contexts=len(federation.contexts),
        image=None if images is None else (images.shape[1], images.shape[2]),
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
    """The method, sized for the participants; then the participants and the newcomers."""
    participants, newcomers = withhold(federation, share=settings.withheld, seed=settings.seed, fold=settings.fold)
    return load_method(method, values, task_of(participants)), participants, newcomers


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
) -> Run:
    """Open a new run, or the one in this folder at its last commit. A different run in the folder is rejected.

    `data` says how the federation was loaded, unless `homespun.load` loaded it. Unless the run is only read, its
    settings are written to the folder, so that it can be reopened by the folder alone. `progress` is called with the
    progress of long work on this run. `temporary` is kept alive as long as the run.
    """
    made, participants, newcomers = method_for(federation, settings, method=method, values=method_settings or {})
    _require_readable(made, federation)
    if not read_only:
        require_device(settings.device)
        _require_known_contexts(made, participants, newcomers, settings)
    _require_same_artefacts(Path(folder), made)
    if (Path(folder) / VAULT_FILE).exists():  # reject another run before building a model, which may be large
        Vault.open(Path(folder), identity=identity_of(made, federation, settings), read_only=True).close()
    built = build(made, seed=settings.seed)
    if settings.privacy is not None and not read_only:  # earlier results can be read without the accountant
        require_accountant()
        require_public_filters(settings.privacy, looks_across=getattr(federation, "looks_across", ()))
    _require_protectable(built, settings, users=len(participants.users))
    server_users = make_prototypical_users(built, federation, seed=settings.seed, device=settings.device)
    new = not (Path(folder) / VAULT_FILE).exists()
    vault = Vault.open(Path(folder), identity=identity_of(made, federation, settings), read_only=read_only)
    data = data or getattr(federation, "loaded_by", None)
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
            data=data,
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


def _require_readable(method: Method, federation: Federation) -> None:
    """Raise if the corpus lacks what the method scores or reads."""
    method.scoring.require(federation.name, method=method.name)
    held = "texts" if method.task.image is None else "images"
    if method.model.reads != held:
        corpora = {"texts": "dialects, sotu or a file", "images": "digits or voices"}[method.model.reads]
        raise SettingsError(
            f"{federation.name}: {method.name} reads {method.model.reads}, but this corpus has {held}. Try {corpora}."
        )


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
    if run.state.round < run.total_rounds or not path.exists():
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
    training = select_part(participants, "train", seed=settings.seed, fractions=settings.fractions)
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
