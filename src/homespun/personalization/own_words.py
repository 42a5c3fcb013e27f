"""The own words of a user: a private lexicon in the run's vault, which the user can read and change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

import torch
from torch import Tensor

from homespun.core.errors import InputError, RunError, nearest, raise_faults
from homespun.core.messages import state_to_bytes
from homespun.core.tree import Tree
from homespun.core.words import words
from homespun.models.next_word import LONGEST_SPELLING, read_spelling, spell_words
from homespun.models.word_memory import without_words
from homespun.personalization.generation import match_user
from homespun.personalization.suggestions import next_word_model
from homespun.runs.run import Run

SHOWN = 40  # characters of a wrong word in an error
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


def typed_until_own(run: Run) -> int:
    """How often a user of this run must have typed a word until it is an own word."""
    return int(getattr(run.method.settings, "own_words_typed", 1))


def own_words(run: Run, user: str) -> list[OwnWord]:
    """The lexicon of a user, most frequent words first."""
    name, private = _lexicon_of(run, user)
    days = _days(run, name)
    counted = zip(_spelled(private), private["own.counts"].tolist(), strict=True)
    return sorted((OwnWord(word, count, days.get(word)) for word, count in counted), key=lambda one: -one.count)


def add_words(run: Run, user: str, texts: Sequence[str], *, today: date | None = None) -> list[str]:
    """Add words to a user's lexicon, and return those that are new. They can be suggested at once: they start as the
    unknown word, whose place they take, and the user's adapter or the federated one, if any, knows their spelling."""
    name, private = _lexicon_of(run, user)
    known = next_word_model(run).vocabulary.index
    wrong = [fault for text in texts if (fault := _fault(text, known))]
    if wrong:
        raise_faults(InputError, f"words of {name!r}", wrong)
    spelled = _spelled(private)
    new = [word for word in dict.fromkeys(map(_as_word, texts)) if word not in spelled]
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
    gone = list(dict.fromkeys(text if text in spelled else _as_word(text) for text in texts))
    missing = [word for word in gone if word not in spelled]
    if missing:
        run.vault.rewrite()  # so that a call that ended before its own rewrite may be repeated
        faults = [f"{_quote(word)} is not in the lexicon.{nearest(word, spelled)}" for word in missing]
        raise_faults(InputError, f"words of {name!r}", faults)
    rows = torch.tensor([place for place, word in enumerate(spelled) if word not in gone], dtype=torch.int64)
    days = {word: day for word, day in _days(run, name).items() if word not in gone}
    left = _with(private, private["own.lexicon"][rows], private["own.counts"][rows])
    if "own.typed" in left:
        vocabulary = len(next_word_model(run).vocabulary)
        left["own.typed"] = without_words(left["own.typed"], rows, vocabulary=vocabulary, words=len(spelled))
    _keep(run, name, left, days)
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


def _as_word(text: str) -> str:
    """A text as it is in a lexicon, if it is one word."""
    found = words(text)
    return found[0] if len(found) == 1 else text


def _fault(text: str, known: Mapping[str, int]) -> str | None:
    """Why a text cannot be an own word."""
    if len(words(text)) != 1:
        return f"{_quote(text)}: expected one word, as in `ada` or `don't`."
    if len(_as_word(text).encode()) > LONGEST_SPELLING:
        return f"{_quote(text)} is longer than {LONGEST_SPELLING} bytes."
    return f"{_as_word(text)!r}: the shared vocabulary has it already." if _as_word(text) in known else None


def _quote(text: str) -> str:
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r}... ({len(text):,} characters)"


def _spelled(private: Tree) -> list[str]:
    return [read_spelling(row).decode() for row in private["own.lexicon"]]


def _with(private: Tree, lexicon: Tensor, counts: Tensor) -> dict[str, Tensor]:
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
