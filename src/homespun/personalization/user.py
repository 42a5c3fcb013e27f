"""The shared model with one user's private parameters: predicts their labels and generates their text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from homespun.core.errors import RunError, UnknownNameError, nearest
from homespun.core.escaping import name_candidates
from homespun.core.roles import Role
from homespun.core.tree import Tree
from homespun.data.federation import Examples
from homespun.data.user_names import find_user
from homespun.engines.client import Client
from homespun.personalization.generation import build_personal_model, continue_text
from homespun.personalization.profiles import Profile
from homespun.personalization.replies import Reply, find_replier
from homespun.runs.run import Run

GENERATE = "continue a text, use `homespun generate`"


@dataclass(frozen=True, repr=False)
class UserModel:
    """The shared model with the private parameters of one user."""

    run: Run
    user: str
    private: Tree
    profile: Profile | None = None  # None: as the run knows it
    notices: tuple[str, ...] = ()  # what the user should know about how they were learned

    def __repr__(self) -> str:
        return f"<UserModel of {self.user!r} in {self.run!r}>"

    def predict(self, texts: Sequence[str]) -> list[str]:
        """The label that this user would give to each text."""
        run = self.run
        if "predict" not in run.scoring.offers:
            use = "reply to a text, use `homespun reply`" if "reply" in run.scoring.offers else GENERATE
            raise RunError(f"{run.method.name} does not predict labels. To {use}.")
        require_text_method(run)
        if run.method.model.reads == "replies":
            raise RunError(f"{run.method.name} reads replies with their prompts, so it cannot label texts alone.")
        examples = Examples(list(texts), labels=None, authors=np.full(len(texts), self._author_index()))
        client = Client(self.user, private=self.private, data=run.method.model.encode(examples))
        (logits,) = run.trainer.predict(run.state.broadcast(), [client])
        return [run.federation.labels[label] for label in logits.argmax(dim=1).tolist()]

    def generate(self, prompt: str = "", *, context: str | None = None, **sampling: Any) -> list[str]:
        """Continue a prompt as this user in a context; `sampling` as in `homespun.generate`."""
        model = build_personal_model(self.run, self.private, user=self.user, context=context)
        return continue_text(model, prompt, **sampling)

    def reply(self, prompt: str, *, context: str | None = None, n: int = 5, **search: Any) -> list[Reply]:
        """The n best replies of this user to a text; `search` as in `homespun.personalization.replies.reply`."""
        replier = find_replier(self.run, context=context)
        speaker = replier.speaker_with(self.private, user=self.user, profile=self.profile)
        return replier.reply_as(prompt, [speaker], n=n, search=search)[0]

    def _author_index(self) -> int:
        users = self.run.federation.users
        return users.index(self.user) if "author" in self.run.method.model.keys.values() else 0


def resolve_typed_user(run: Run, typed: str) -> str:
    """The user with a name typed on a command line; a name that no user has is returned unchanged."""
    known = (one for one in name_candidates(typed) if one in run.federation.users or run.vault.private_many([one]))
    return next(known, typed)


def load_user_model(run: Run, user: str) -> UserModel:
    """The model of a user of this run. The error for an unknown name suggests the nearest."""
    kept = run.clients.stored_private([user])
    if user in kept:
        return UserModel(run, user, kept[user])
    if run.built.partition.names(Role.PRIVATE):
        near = nearest(user, run.vault.users(limit=100_000))
        raise UnknownNameError(f"no user {user!r} in this run.{near} To add a new user, use `homespun personalize`.")
    if "author" in run.method.model.keys.values():
        find_user(run.federation, user)
    return UserModel(run, user, {})


def require_text_method(run: Run) -> None:
    """Raise unless the method reads texts or replies."""
    if run.method.model.medium != "texts":
        raise RunError(
            f"{run.method.name} reads {run.method.model.reads}, not text. To test the run on the users of its corpus, "
            "use `homespun evaluate`."
        )
