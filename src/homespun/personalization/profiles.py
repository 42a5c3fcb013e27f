"""Profiles of the users of a run: those of participants are in its data, those of new users are kept in its vault."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from homespun.core.errors import InputError, VaultError, nearest
from homespun.data.federation import Examples
from homespun.data.profiles import Profiles
from homespun.runs.run import Run

ARTEFACT = "profile"
Profile = Mapping[str, str | None]  # column -> value; None: unknown


def find_profiles(run: Run) -> Profiles | None:
    """The profiles of a run's participants; None if its corpus has none."""
    found: Profiles | None = getattr(run.federation, "profiles", None)
    return found


def profile_of(run: Run, user: str | None) -> Profile:
    """The profile of a participant or a personalized user. Everything about any other user is unknown."""
    profiles = find_profiles(run)
    if profiles is None or user is None:
        return {}
    if user in run.federation.users:
        return profiles.named(profiles.number_of[run.federation.users.index(user)])
    stored = run.vault.artefact(ARTEFACT, user=user)
    return {} if stored is None else _parse(run, stored)


def stage_profile(run: Run, user: str, profile: Profile) -> None:
    """Keep the profile of a new user in the vault, from its next commit until the user is removed from it."""
    if profile:
        run.vault.stage_artefact(ARTEFACT, json.dumps(dict(profile)).encode(), user=user)


def assign_profile(run: Run, examples: Examples, profile: Profile) -> Examples:
    """The examples with the profile of their author, in the run's numbers. A value that no participant has is unknown,
    like a column that the profile lacks; a column that the run does not have is an error."""
    profiles = find_profiles(run)
    known = () if profiles is None else profiles.columns
    others = [name for name in profile if name not in known]
    if others:
        has = f"Its profile has {', '.join(map(repr, known))}." if known else "It has no profiles."
        raise InputError(f"profile: the run has no column {others[0]!r}.{nearest(others[0], known)} {has}")
    if profiles is None:
        return replace(examples, profiles=None)
    return replace(examples, profiles=np.tile(profiles.numbers(profile), (len(examples), 1)))


def assigned_profile(run: Run, examples: Examples) -> Profile:
    """The profile in these examples of one user, by the run's values."""
    profiles = find_profiles(run)
    if profiles is None or examples.profiles is None or not len(examples):
        return {}
    return profiles.named(examples.profiles[0])


def _parse(run: Run, stored: bytes) -> Profile:
    try:
        found = json.loads(stored)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(one is None or isinstance(one, str) for one in found.values()):
        remedy = "Remove the user with `homespun vault forget`, and personalize again."
        raise VaultError(f"{run.vault.path}: it contains a profile that cannot be read. {remedy}")
    return found
