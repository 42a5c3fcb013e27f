"""A new user from a file of their own: learned at home, kept in the vault, nothing uploaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from homespun.core import seeds
from homespun.core.errors import DataError, RunError, UnknownNameError, nearest
from homespun.core.messages import state_to_bytes
from homespun.core.roles import Role
from homespun.data.federation import Examples, Federation
from homespun.data.names import find_user
from homespun.engines.engine import Client
from homespun.evaluation.classification import Evaluation
from homespun.evaluation.language import TextEvaluation
from homespun.files import DataSettings
from homespun.run import Run
from homespun.training import Person, judge, known_person, label_indices, personalize_many, reopen

Scores: TypeAlias = Evaluation | TextEvaluation

HELD_OUT = 5  # every fifth example shows what personalizing brought


def personalize_from_file(folder: Path | str, source: DataSettings, *, user: str | None) -> dict[str, Any]:
    """Personalize for the examples of one user in a file and keep the result in the run's vault."""
    with reopen(folder, read_only=False) as run:
        given = source.model_copy(update={"columns": {**run.data.columns, **source.columns}}).load()
        if not run.method.personalize:
            raise RunError(f"{folder}: {run.method.name} keeps nothing private, so there is nothing to personalize.")
        name, examples, unknown = own_examples(given, user, labels=run.federation.labels)
        require_new(run, name)
        before, after = held_out_gain(run, name, examples)
        home = Client(name, private=run.new_private(name), data=run.method.encode(examples))
        learned = personalize_many(run, [home])[name]
        run.vault.stage({name: run.built.partition.select(learned, Role.PRIVATE)})
        run.vault.commit(round=run.state.round, state=state_to_bytes(run.state))
    gain = "" if after is None or before is None else f" {_went(before, after)}"
    rest = f" ({unknown} with labels unknown to the run left out)" if unknown else ""
    return {
        "user": name,
        "examples": len(examples),
        "before": None if before is None else before.to_dict(),
        "after": None if after is None else after.to_dict(),
        "uploaded_bytes": 0,
        "left_out": unknown,
        "message": f"{name}: personalized from {len(examples)} examples{rest}; nothing was uploaded.{gain}",
    }


def _went(before: Scores, after: Scores) -> str:
    if isinstance(before, Evaluation) and isinstance(after, Evaluation):
        change = f"accuracy went from {100 * before.accuracy:.1f} % to {100 * after.accuracy:.1f} %"
    else:
        change = f"perplexity went from {before.headline[1]:.1f} to {after.headline[1]:.1f}"
    return f"On {after.examples} held-out examples {change}."


def own_examples(given: Federation, user: str | None, *, labels: tuple[str, ...]) -> tuple[str, Examples, int]:
    """The one user's examples, with labels numbered as the run numbers them, and how many have a label it lacks."""
    users = list(given.users)
    if user is None and len(users) > 1:
        raise DataError(f"{given.name}: has {len(users)} users. Say which one with --user.")
    name = users[0] if user is None else user
    if name not in users:
        raise UnknownNameError(f"{given.name}: no user {name!r}.{nearest(name, users)}")
    examples = given.examples(users.index(name))
    if examples.labels is None:
        raise DataError(f"{given.name}: its examples have no label. Name the column with --label-column.")
    named = [given.labels[label] for label in examples.labels]
    known = [row for row, label in enumerate(named) if label in labels] or range(len(named))  # none: the error says so
    indices = label_indices([named[row] for row in known], labels)
    return name, replace(examples.take(list(known)), labels=indices), len(named) - len(known)


def require_new(run: Run, user: str) -> None:
    if user in run.federation.users:
        raise RunError(f"user {user!r} takes part in this run: train it further instead.")
    if run.vault.private(user) is not None:
        raise RunError(
            f"user {user!r} has private parameters in this run already. `homespun vault forget` removes them."
        )


def held_out_gain(run: Run, user: str, examples: Examples) -> tuple[Scores | None, Scores | None]:
    """Before and after, on a fifth of the examples that is not learned from."""
    order = seeds.numpy_generator(run.settings.seed, "held out", user).permutation(len(examples))
    held = len(examples) // HELD_OUT
    if held == 0:
        return None, None
    fresh = Client(user, private=run.new_private(user), data=run.method.encode(examples.take(np.sort(order[held:]))))
    data = run.method.encode(examples.take(np.sort(order[:held])))
    learned = personalize_many(run, [fresh])[user]
    before, after = (judge(run, [[Client(user, private=own, data=data)]]) for own in (fresh.private, learned))
    return before, after


def require_person(run: Run, user: str) -> Person:
    """Somebody the run knows; a misspelt name gets the nearest."""
    if run.built.partition.names(Role.PRIVATE):
        if run.vault.private(user) is not None:
            return known_person(run, user)
        near = nearest(user, run.vault.users(limit=100_000))
        raise UnknownNameError(f"no user {user!r} in this run.{near} `homespun personalize` adds somebody new.")
    if run.method.keys:
        find_user(run.federation, user)
    return Person(run, user, {})
