"""One person beside the shared model: what they would label or say, with parameters of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from homespun.core.errors import RunError, UnknownNameError, nearest
from homespun.core.roles import Role
from homespun.core.spelling import readings
from homespun.core.tree import Tree
from homespun.data.federation import Examples
from homespun.data.user_names import find_user
from homespun.engines.client import Client
from homespun.personalization.generation import continued, voice_of
from homespun.runs.run import Run


@dataclass(frozen=True)
class Person:
    """Somebody's own parameters beside the shared model."""

    run: Run
    user: str
    private: Tree

    def predict(self, texts: Sequence[str]) -> list[str]:
        """The label this person would give to each text."""
        run = self.run
        if "predict" not in run.scoring.offers:
            raise RunError(f"{run.method.name} learns no labels. `homespun generate` continues a text instead.")
        require_texts(run)
        examples = Examples(list(texts), labels=None, authors=np.full(len(texts), self._position()))
        client = Client(self.user, private=self.private, data=run.method.encode(examples))
        (logits,) = run.trainer.predict(run.state.broadcast(), [client])
        return [run.federation.labels[label] for label in logits.argmax(dim=1).tolist()]

    def generate(self, opening: str = "", *, context: str | None = None, **sampling: Any) -> list[str]:
        """The opening as this person would continue it in a context; `sampling` as in `homespun.generate`."""
        return continued(voice_of(self.run, self.private, user=self.user, context=context), opening, **sampling)

    def _position(self) -> int:
        users = self.run.federation.users
        return users.index(self.user) if "author" in self.run.method.keys.values() else 0


def typed_user(run: Run, typed: str) -> str:
    """The user whom a name typed on a command line stands for; a name that nobody has stays as it is."""
    known = (one for one in readings(typed) if one in run.federation.users or run.vault.private_many([one]))
    return next(known, typed)


def require_person(run: Run, user: str) -> Person:
    """Somebody the run knows; a misspelt name gets the nearest."""
    if run.built.partition.names(Role.PRIVATE):
        kept = run.clients.kept([user])
        if user in kept:
            return Person(run, user, kept[user])
        near = nearest(user, run.vault.users(limit=100_000))
        raise UnknownNameError(f"no user {user!r} in this run.{near} `homespun personalize` adds somebody new.")
    if "author" in run.method.keys.values():
        find_user(run.federation, user)
    return Person(run, user, {})


def require_texts(run: Run) -> None:
    """Somebody who brings texts cannot be answered by a method that looks at images."""
    if run.method.reads != "texts":
        raise RunError(
            f"{run.method.name} reads {run.method.reads}, and what is given here is text. `homespun evaluate` tests "
            "the run with the people of its corpus."
        )
