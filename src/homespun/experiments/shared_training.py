"""Runs of a comparison that differ in personalization only share their rounds: one trains, the others start from its
last round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from homespun.core.messages import state_from_bytes
from homespun.core.method import Assign, BuiltMethod, optimizers
from homespun.core.roles import Role
from homespun.runs.run import Run
from homespun.runs.vault import VAULT_FILE, Vault


def adopt_training(run: Run, folders: Iterable[Path]) -> bool:
    """Start a new run from the last round of the first of these runs that would train the same, if there is one.

    Rounds must not train private parameters, which stay in their run. A private run is never copied: its ledger has the
    releases of the run that made them.
    """
    settings = run.method.settings
    if run.state.round or not settings.personalization_only or run.settings.privacy is not None:
        return False
    if _trains_private(run.built):
        return False
    asked = _training(run.vault.identity, settings.personalization_only)
    for folder in folders:
        if not (folder / VAULT_FILE).exists():
            continue
        with Vault.open(folder, read_only=True) as vault:
            state, same = vault.state, _training(vault.identity, settings.personalization_only) == asked
            if state is None or not same or vault.round != run.total_rounds:
                continue
            run.start_from(run.built.in_roles(state_from_bytes(state)), vault.history())
            return True
    return False


def _trains_private(built: BuiltMethod) -> bool:
    private = built.partition.names(Role.PRIVATE)
    return any(isinstance(phase, Assign) or bool(optimizers(phase, private)) for phase in built.method.local.phases)


def _training(identity: Mapping[str, Any], personalization_only: tuple[str, ...]) -> dict[str, Any]:
    """The part of an identity that the rounds depend on."""
    values = {name: value for name, value in identity["method_settings"].items() if name not in personalization_only}
    return {**identity, "method_settings": values}
