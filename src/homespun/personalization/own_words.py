"""The own words of a user: a private lexicon in the run's vault, which the user can read and change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

import torch
from torch import Tensor

from homespun.core.errors import InputError, RunError, nearest
from homespun.core.messages import state_to_bytes
from homespun.core.tree import Tree
from homespun.core.words import words
from homespun.models.next_word import LONGEST_SPELLING, read_spelling, spell_words
from homespun.personalization.generation import match_user
from homespun.personalization.suggestions import next_word_model
from homespun.runs.run import Run

ARTEFACT = "own words"  # of a user: the day on which each word was added, by hand or from a file


@dataclass(frozen=True)
class OwnWord:
    """A word of a user's lexicon."""

    word: str
    count: int  # in the texts that it was learned from; 0: added by hand
    since: date | None  # None: since training


def has_lexicon(run: Run) -> bool:
    """Whether users of this run have own words."""
    return any(name.startswith("own.") for name in run.built.partition.roles)


def own_words(run: Run, user: str) -> list[OwnWord]:
    """The lexicon of a user, most frequent words first."""
    name, private = _lexicon_of(run, user)
    days = _days(run, name)
    return [
        OwnWord(word, count, days.get(word))
        for word, count in zip(_spelled(private), private["own.counts"].tolist(), strict=True)
    ]


def add_words(run: Run, user: str, texts: Sequence[str], *, today: date | None = None) -> list[str]:
    """Add words to a user's lexicon, and return those that are new. They can be suggested at once: the user's adapter
    computes their place in the output layer from their spelling."""
    name, private = _lexicon_of(run, user)
    known = next_word_model(run).vocabulary.index
    new: list[str] = []
    for text in texts:
        (word,) = found if len(found := words(text)) == 1 else ("",)
        if not word:
            raise InputError(f"word {text!r}: expected one word, as in `ada` or `don't`.")
        if len(word.encode()) > LONGEST_SPELLING:
            raise InputError(f"word {text!r}: it is longer than {LONGEST_SPELLING} bytes.")
        if word in known:
            raise InputError(f"word {word!r}: the shared vocabulary has it already.")
        if word not in [*_spelled(private), *new]:
            new.append(word)
    rows, counts = spell_words([word.encode() for word in new]), torch.zeros(len(new), dtype=torch.int64)
    day = today or datetime.now(tz=UTC).date()
    grown = _with(private, torch.cat((private["own.lexicon"], rows)), torch.cat((private["own.counts"], counts)))
    _keep(run, name, grown, {**_days(run, name), **dict.fromkeys(new, day)})
    return new


def forget_words(run: Run, user: str, texts: Sequence[str]) -> list[str]:
    """Remove words from a user's lexicon and from the vault's files, and return them. The user's copy of the model was
    trained with them: personalize again to be rid of that too."""
    name, private = _lexicon_of(run, user)
    spelled = _spelled(private)
    gone = [text.strip().lower() for text in texts]
    for word in gone:
        if word not in spelled:
            raise InputError(f"word {word!r} is not in the lexicon of {name!r}.{nearest(word, spelled)}")
    rows = [place for place, word in enumerate(spelled) if word not in gone]
    days = {word: day for word, day in _days(run, name).items() if word not in gone}
    _keep(run, name, _with(private, private["own.lexicon"][rows], private["own.counts"][rows]), days)
    run.vault.rewrite("The words are removed, but traces may remain in the files: then run it again.")
    return gone


def stage_dates(run: Run, user: str, private: Tree) -> None:
    """Remember, with the vault's next commit, that these private parameters of a new user were learned today."""
    if "own.lexicon" in private:
        _stage_days(run, user, dict.fromkeys(_spelled(private), datetime.now(tz=UTC).date()))


def _lexicon_of(run: Run, user: str) -> tuple[str, Tree]:
    next_word_model(run)  # raises for other methods
    name = match_user(run, user)
    private = run.clients.private([name], run.state.broadcast())[name]
    if not has_lexicon(run):
        raise RunError(f"{run.vault.path.parent}: own_words = none, so users of this run have no own words.")
    return name, private


def _spelled(private: Tree) -> list[str]:
    return [read_spelling(row).decode() for row in private["own.lexicon"]]


def _with(private: Tree, lexicon: Tensor, counts: Tensor) -> Tree:
    return {**private, "own.lexicon": lexicon, "own.counts": counts}


def _keep(run: Run, user: str, private: Tree, days: Mapping[str, date]) -> None:
    _stage_days(run, user, days)
    run.vault.stage({user: private})
    run.vault.commit(round=run.state.round, state=state_to_bytes(run.state))


def _stage_days(run: Run, user: str, days: Mapping[str, date]) -> None:
    stored = json.dumps({word: day.isoformat() for word, day in days.items()}).encode()
    run.vault.stage_artefact(ARTEFACT, stored, user=user)


def _days(run: Run, user: str) -> dict[str, date]:
    stored = run.vault.artefact(ARTEFACT, user=user)
    return {word: date.fromisoformat(day) for word, day in json.loads(stored or b"{}").items()}
