"""Suggest the next word as a user would type it.

    suggest(run, "we should meet at the", user="ada")

The run's model with the user's copy of it, own words and adapter scores every word that may follow. Nothing is
uploaded, and the run does not change.
"""

from __future__ import annotations

import numpy as np

from homespun.core.errors import InputError, RunError
from homespun.core.tree import Tree
from homespun.core.words import spell_alike, words
from homespun.models.next_word_model import NextWordModel, load_next_word_model
from homespun.models.suggester import Suggester, Suggestion
from homespun.personalization.generation import match_user
from homespun.runs.run import Run


def find_suggester(run: Run, user: str | None = None) -> Suggester:
    """The suggestions of a user, given their name or a part of it; without a name, those of a new user."""
    name = None if user is None else match_user(run, user)
    return suggester_with(run, private_of(run, name))


def private_of(run: Run, user: str | None) -> Tree:
    """The private parameters of a user; those of a new user if the run has none."""
    kept = {} if user is None else run.clients.stored_private([user])
    return next(iter(kept.values()), None) or run.clients.new_private(user or "", run.state.broadcast())


def suggester_with(run: Run, private: Tree) -> Suggester:
    """The suggestions of the shared model with these private parameters."""
    require_no_memory(run)
    made = Suggester(next_word_model(run).vocabulary, run.built.parameters(run.state.broadcast(), private))
    if not np.isfinite(made.start.log_probs).all():
        raise RunError(f"{run.vault.path.parent}: the model's scores are not finite. Train again with a smaller lr.")
    return made


def require_no_memory(run: Run) -> None:
    if "own.typed" in run.built.partition.roles:
        raise RunError(
            f"{run.vault.path.parent}: suggestions do not use a memory, which is a control for comparisons. Train with "
            "memory = none."
        )


def next_word_model(run: Run) -> NextWordModel:
    """The pre-trained model that a run started from. Raises if it does not suggest words."""
    found = next((one for one in run.method.artefacts if one.kind == "next-word model"), None)
    if found is None or "suggest" not in run.scoring.offers:
        raise RunError(
            f"{run.vault.path.parent}: {run.method.name} does not suggest words. Train a method that does: `homespun "
            "train oov_expansion`."
        )
    base = load_next_word_model(found.name)
    if base.subwords is not None:
        raise RunError(
            f"{run.vault.path.parent}: a model of sub-words is a control for comparisons and suggests no words. Train "
            "with a base model of words."
        )
    return base


def suggest(run: Run, text: str, *, user: str | None = None, prefix: str = "", k: int = 3) -> list[Suggestion]:
    """The k likeliest words after a text; with `prefix`, of those that begin with what is typed of it already. `user`
    is a name or an unambiguous part of it; without one, the suggestions are those of a new user.

    Example:
        >>> texts = [{"user": who, "text": "the people of the state"} for who in ("ada", "bo")]
        >>> with train("oov_expansion", load(8 * texts), base_model="untrained-small", rounds=1, workers=0) as run:
        ...     [one.word for one in suggest(run, "the", prefix="peop")]
        ['people']
    """
    if not isinstance(text, str) or not isinstance(prefix, str):
        raise InputError("text and prefix: expected texts.")
    if k < 1:
        raise InputError(f"k: {k} suggestions. Ask for at least one.")
    suggester = find_suggester(run, user)
    return suggester.suggest(suggester.read_all(words(text)), spell_alike(prefix), k=k)
