"""`dialects`: a synthetic population with known preferences.

Every user belongs to one of several hidden groups. All users write about the same topics in short messages of made-up
words, but

- **taste**: groups give different labels to the same topic (`multiclass`), or like it to a different degree (`binary`,
  with rare positives, like clicks on a suggested sticker);
- **dialect**: every word has two spellings, and each group prefers one of them.

A message reveals its topic but hardly its group: with the default `dialect`, a message of five words carries less than
half a bit of the three bits that identify one of eight groups. So a model without user information can do little
better than the label most groups share, a model with it can, and `ceiling` gives the exact accuracy of both.

A user's examples are a function of (seed, position). Nothing is stored, and a million users need no more memory than
one. Positions beyond the population are users who never took part (`Dialects.fresh`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from pydantic import Field

from homespun.core.errors import SettingsError
from homespun.core.seeds import derive, numpy_generator
from homespun.core.settings import Settings as SettingsBase
from homespun.core.settings import parse
from homespun.data.federation import Examples, short_repr
from homespun.data.user_names import NumberedNames

VERSION = 1  # increment when the same settings give different examples
WORDS_PER_TOPIC, COMMON_WORDS = 4, 12
TOPIC_WORD_SHARE = 0.6  # of a message's words after the first; the other words are common to all topics
CONSONANTS, VOWELS = "bdfghjklmnprstvz", "aeiou"
SHAPE = (CONSONANTS, VOWELS, CONSONANTS, VOWELS, CONSONANTS)  # of a word; short words have the first 3 or 4 letters
# How strongly (in log-odds) a topic, a group and a user change the probability of a positive.
TOPIC_SPREAD, GROUP_SPREAD, LEANING_SPREAD = 1.25, 1.0, 0.5
LEANINGS = (-1.4, -0.5, 0.0, 0.5, 1.4)  # a user's own leaning is one of these, so that ceilings are exact


class Settings(SettingsBase):
    """The population."""

    users: int = Field(default=1000, ge=1, le=10**12)
    """Users."""
    examples: int = Field(default=64, ge=1, le=100_000)
    """Mean number of examples per user."""
    ragged: float = Field(default=0.5, ge=0, le=1)
    """Users have up to this share fewer or more examples than the mean."""
    groups: int = Field(default=8, ge=1, le=1024)
    """Hidden groups of users; users of a group label and spell alike."""
    classes: int = Field(default=8, ge=2, le=256)
    """Topics of messages; with task = multiclass also the number of labels."""
    task: Literal["multiclass", "binary"] = "multiclass"
    """What is predicted: one of several labels, or a rare positive."""
    strength: float = Field(default=0.75, ge=0, le=1)
    """How much groups disagree about labels. 0: they agree; 1: every group has its own labels."""
    dialect: float = Field(default=0.3, ge=0, le=1)
    """How differently groups spell. 0: all alike; 1: every group always uses its own spellings."""
    words_per_message: int = Field(default=5, ge=1, le=7)
    """Words in a message."""
    noise: float = Field(default=0.1, ge=0, le=1)
    """Share of the labels that are drawn at random, independently of user and message."""
    positive_rate: float = Field(default=0.05, gt=0, lt=1)
    """Share of positives over the whole population, with task = binary."""
    seed: int = 0
    """Random seed of the population."""


def load(settings: Mapping[str, Any]) -> Dialects:
    """Load the population described by these settings."""
    return Dialects(parse(Settings, settings, where="dialects", listed_by="homespun data settings dialects"))


@dataclass(frozen=True, repr=False)
class Dialects:
    """A federation whose examples are computed on demand."""

    settings: Settings
    first: int = 0  # position of the first user in the unbounded population
    name: str = "dialects"
    loaded_by: Any = field(default=None, compare=False)  # the settings it was loaded with, if `homespun.load` did it

    __repr__ = short_repr

    @property
    def fingerprint(self) -> str:
        text = f"dialects {VERSION} {self.first} {self.settings.model_dump_json()}"
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def users(self) -> Sequence[str]:
        return NumberedNames(self.settings.users, first=self.first)

    @property
    def labels(self) -> tuple[str, ...]:
        if self.settings.task == "binary":
            return ("no", "yes")
        width = len(str(self.settings.classes - 1))
        return tuple(f"label-{index:0{width}d}" for index in range(self.settings.classes))

    @property
    def contexts(self) -> tuple[str, ...]:
        return ()

    def group(self, user: int) -> str:
        return f"group-{self._group(self._index(user))}"

    def fresh(self, users: int) -> Dialects:
        """New users of the same population who are not in this federation."""
        if users < 1:
            raise SettingsError(f"dialects: at least one new user is needed (got {users})")
        settings = self.settings.model_copy(update={"users": users})
        return replace(self, settings=settings, first=self.first + self.settings.users)

    def examples(self, user: int) -> Examples:
        index = self._index(user)
        generator = numpy_generator(self.settings.seed, "dialects.examples", index)
        count = _count(self.settings, generator)
        topics = generator.integers(self.settings.classes, size=count)
        return Examples(
            texts=self._write(topics, self._group(index), generator),
            labels=self._label(topics, index, generator),
            authors=np.full(count, user, dtype=np.int64),
        )

    def _index(self, user: int) -> int:
        if not 0 <= user < self.settings.users:
            raise IndexError(f"no user {user} among {self.settings.users}")
        return self.first + int(user)  # positions may be numpy integers; seeds need Python integers

    def _group(self, index: int) -> int:
        return derive(self.settings.seed, "dialects.group", index) % self.settings.groups

    def _write(self, topics: np.ndarray, group: int, generator: np.random.Generator) -> list[str]:
        shape = (len(topics), self.settings.words_per_message)
        on_topic = generator.random(shape) < TOPIC_WORD_SHARE
        on_topic[:, 0] = True
        on_topic = generator.permuted(on_topic, axis=1)
        words = np.where(
            on_topic,
            topics[:, None] * WORDS_PER_TOPIC + generator.integers(WORDS_PER_TOPIC, size=shape),
            self.settings.classes * WORDS_PER_TOPIC + generator.integers(COMMON_WORDS, size=shape),
        )
        other_spelling = generator.random(shape) < (1 - self.settings.dialect) / 2
        spelling = self._tables.favourites[group][words] ^ other_spelling
        return [" ".join(row) for row in self._tables.words[words, spelling.astype(np.int8)].tolist()]

    def _label(self, topics: np.ndarray, index: int, generator: np.random.Generator) -> np.ndarray:
        settings, group = self.settings, self._group(index)
        noisy = generator.random(len(topics)) < settings.noise
        if settings.task == "multiclass":
            noise = generator.integers(settings.classes, size=len(topics))
            return np.where(noisy, noise, self._tables.opinions[group][topics])
        leaning = derive(settings.seed, "dialects.person", index) % len(LEANINGS)
        chance = np.where(noisy, settings.positive_rate, self._tables.chances[group, leaning][topics])
        return (generator.random(len(topics)) < chance).astype(np.int64)

    @cached_property
    def _tables(self) -> Tables:
        return tables(self.settings)


def _count(settings: Settings, generator: np.random.Generator) -> int:
    # symmetric about `examples` and at least 1, so that the mean is exactly `examples`
    spread = min(round(settings.examples * settings.ragged), settings.examples - 1)
    return int(generator.integers(settings.examples - spread, settings.examples + spread, endpoint=True))


@dataclass(frozen=True)
class Tables:
    """Tables shared by the whole population; their size does not depend on the number of users."""

    words: np.ndarray  # (word, spelling) -> text; a topic's words are adjacent, common words come last
    favourites: np.ndarray  # (group, word) -> preferred spelling
    opinions: np.ndarray  # (group, topic) -> label of the multi-class task
    chances: np.ndarray  # (group, leaning, topic) -> probability of a positive in the binary task


def tables(settings: Settings) -> Tables:
    words = _lexicon(settings)
    generator = numpy_generator(settings.seed, "dialects.favourites")
    favourites = generator.random((settings.groups, len(words))) < 0.5
    return Tables(words, favourites, _opinions(settings), _chances(settings))


def _lexicon(settings: Settings) -> np.ndarray:
    generator = numpy_generator(settings.seed, "dialects.lexicon")
    taken: set[str] = set()
    rows: list[list[str]] = []
    while len(rows) < settings.classes * WORDS_PER_TOPIC + COMMON_WORDS:
        length, *letters, shift = generator.integers([3, *map(len, SHAPE), len(VOWELS) - 1])
        word = "".join(kind[letter] for kind, letter in zip(SHAPE[: length + 3], letters, strict=False))
        other = word[0] + VOWELS[(VOWELS.index(word[1]) + 1 + shift) % len(VOWELS)] + word[2:]
        if not taken & {word, other}:
            taken |= {word, other}
            rows.append([word, other])
    return np.array(rows, dtype=object)


def _opinions(settings: Settings) -> np.ndarray:
    """For each topic, a `strength` share of the groups draw their own label; the others share one."""
    generator = numpy_generator(settings.seed, "dialects.opinions")
    opinions = np.tile(np.arange(settings.classes), (settings.groups, 1))
    for topic in range(settings.classes):
        own = generator.permutation(settings.groups)[: round(settings.strength * settings.groups)]
        opinions[own, topic] = generator.integers(settings.classes, size=len(own))
    return opinions


def _chances(settings: Settings) -> np.ndarray:
    generator = numpy_generator(settings.seed, "dialects.chances")
    shared, own = np.sqrt(1 - settings.strength), np.sqrt(settings.strength)
    common = generator.standard_normal(settings.classes)
    taste = generator.standard_normal((settings.groups, settings.classes))
    level = generator.standard_normal((settings.groups, 1, 1))
    odds = TOPIC_SPREAD * (shared * common + own * taste)[:, None, :]
    odds = odds + own * (GROUP_SPREAD * level + LEANING_SPREAD * np.array(LEANINGS)[None, :, None])
    low, high = -60.0, 60.0
    for _ in range(100):  # bisection for the offset that gives `positive_rate`
        middle = (low + high) / 2
        if np.mean(1 / (1 + np.exp(-odds - middle))) < settings.positive_rate:
            low = middle
        else:
            high = middle
    return 1 / (1 + np.exp(-odds - low))


@dataclass(frozen=True)
class Ceiling:
    """The best expected score of a model that reads topics perfectly and ignores dialects."""

    metric: Literal["accuracy", "auc"]
    known: float  # if it knows the user's group (and in the binary task the user's leaning)
    unknown: float  # if it does not


def ceiling(settings: Settings) -> Ceiling:
    """The exact ceiling for groups of equal size."""
    if settings.task == "multiclass":
        shares = [np.bincount(column).max() / settings.groups for column in _opinions(settings).T]
        by_chance = settings.noise / settings.classes
        known, unknown = ((1 - settings.noise) * share + by_chance for share in (1.0, float(np.mean(shares))))
        return Ceiling("accuracy", known, unknown)
    chances = (1 - settings.noise) * _chances(settings) + settings.noise * settings.positive_rate
    without_user = np.broadcast_to(chances.mean(axis=(0, 1)), chances.shape)
    return Ceiling("auc", _area(chances, chances), _area(chances, without_user))


def _area(chances: np.ndarray, scores: np.ndarray) -> float:
    """Area under the ROC curve over equally frequent cases with these probabilities; ties count half."""
    _, rank = np.unique(np.round(scores.ravel(), 12), return_inverse=True)
    positive = np.bincount(rank, weights=chances.ravel())
    negative = np.bincount(rank, weights=1 - chances.ravel())
    below = np.cumsum(negative) - negative / 2
    return float((positive * below).sum() / (positive.sum() * negative.sum()))
