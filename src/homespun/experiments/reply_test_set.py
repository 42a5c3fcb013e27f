"""What replies of runs on one corpus and split are compared with: test pairs, real training lines, and controls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any, Literal, TypeVar

import numpy as np

from homespun.core.errors import InputError
from homespun.data.federation import Examples
from homespun.evaluation.speakers import SpeakerClassifier, fit_classifier, nearest_questions, similar_questions
from homespun.runs.run import Run

Item = TypeVar("Item")
SIMILAR = 0.7  # cosine of two questions that count as paraphrases
PARAPHRASES = 50  # pairs of them whose answers are compared


@dataclass(frozen=True)
class TestPair:
    """A prompt of a user's test part and the reply they gave."""

    __test__ = False  # not a test class

    user: str
    prompt: str
    reply: str
    conversation: int


@dataclass(frozen=True)
class ReplyTest:
    """What replies of runs on one corpus and split are compared with."""

    pairs: tuple[TestPair, ...]  # whose best replies are scored
    paraphrased: tuple[TestPair, ...]  # to compare with each other
    similar: tuple[tuple[int, int], ...]  # places in `paraphrased` of two prompts to one user that are paraphrases
    sampled: tuple[TestPair, ...]  # whose sampled replies are scored
    nearest: Mapping[TestPair, str]  # the control: the speaker's answer to the nearest training prompt
    classifier: SpeakerClassifier
    lines: tuple[str, ...]  # of all training parts

    @property
    def asked(self) -> tuple[TestPair, ...]:
        """All pairs whose prompts a run answers: those to score come first."""
        return (*self.pairs, *self.paraphrased)

    def to_dict(self, pairs: Sequence[TestPair]) -> dict[str, Any]:
        """Whose prompts are scored, and their conversations."""
        users = list(dict.fromkeys(one.user for one in pairs))
        return {
            "users": users,
            "user": [users.index(one.user) for one in pairs],
            "conversation": [one.conversation for one in pairs],
            "speakers": len(self.classifier.users),
        }


def part_of(run: Run, user: str, part: Literal["train", "eval", "test"]) -> Examples:
    examples: Examples = getattr(run.clients.split(run.federation, run.federation.users.index(user)), part)
    return examples


def conversations_of(examples: Examples) -> list[int]:
    assert examples.conversations is not None  # replies have them
    return [int(one) for one in examples.conversations]


def make_reply_test(run: Run, *, replies: int, sampled: int = 0) -> ReplyTest:
    """About `replies` test pairs, as many of each participant; `sampled` pairs for sampled replies, 0: the same;
    paraphrases among all test prompts; and a classifier of the training parts' lines."""
    users = trained_users(run)
    every = {user: _test_pairs(run, user) for user in users}
    pairs, more = (
        [pair for user in users for pair in _spread(every[user], max(1, round(count / len(users))))]
        for count in (replies, sampled or replies)
    )
    paraphrased, similar = _paraphrases([pair for user in users for pair in every[user]])
    asked = list(dict.fromkeys((*pairs, *paraphrased, *more)))
    nearest = _nearest_training_rows(run, asked)
    texts = {user: part_of(run, user, "train").texts for user in users}
    return ReplyTest(
        pairs=tuple(pairs),
        paraphrased=tuple(paraphrased),
        similar=tuple(similar),
        sampled=tuple(more),
        nearest={pair: texts[pair.user][row] for pair, row in zip(asked, nearest, strict=True)},
        classifier=fit_classifier(texts, seed=run.settings.seed),
        lines=tuple(line for own in texts.values() for line in own),
    )


def trained_users(run: Run) -> list[str]:
    return [user for user in run.federation.users if len(part_of(run, user, "train"))]


def _test_pairs(run: Run, user: str) -> list[TestPair]:
    test = part_of(run, user, "test")
    rows = zip(test.prompts or (), test.texts, conversations_of(test), strict=True)
    return [TestPair(user, prompt or "", text, conversation) for prompt, text, conversation in rows]


def _spread(items: Sequence[Item], count: int) -> list[Item]:
    """All items, or `count` of them, evenly spaced."""
    if len(items) <= count:
        return list(items)
    return [items[place] for place in np.unique(np.linspace(0, len(items) - 1, count).round().astype(np.int64))]


def _paraphrases(pairs: Sequence[TestPair]) -> tuple[list[TestPair], list[tuple[int, int]]]:
    """Pairs whose prompts are paraphrases of each other, to one user, and their places in the list of these."""
    try:
        found = similar_questions([one.prompt for one in pairs], threshold=SIMILAR, users=[one.user for one in pairs])
    except InputError:  # there is no prompt, or none has a word
        return [], []
    chosen = _comparable(_spread(found, PARAPHRASES), users=[one.user for one in pairs])
    places = sorted({place for both in chosen for place in both})
    return [pairs[place] for place in places], [(places.index(one), places.index(other)) for one, other in chosen]


def _comparable(similar: Sequence[tuple[int, int]], *, users: Sequence[str]) -> list[tuple[int, int]]:
    """The pairs of the users who have pairs that are not similar too, with which agreement is compared."""
    asked: dict[str, set[int]] = {}
    for both in similar:
        asked.setdefault(users[both[0]], set()).update(both)
    count = Counter(users[one] for one, _ in similar)
    return [both for both in similar if comb(len(asked[users[both[0]]]), 2) > count[users[both[0]]]]


def _nearest_training_rows(run: Run, asked: Sequence[TestPair]) -> list[int]:
    """For each prompt, the row of its user's training part with the most similar prompt."""
    found: dict[int, int] = {}
    for user in dict.fromkeys(one.user for one in asked):
        known = [prompt or "" for prompt in part_of(run, user, "train").prompts or ()]
        places = [place for place, one in enumerate(asked) if one.user == user]
        found |= dict(zip(places, nearest_questions(known, [asked[place].prompt for place in places]), strict=True))
    return [found[place] for place in range(len(asked))]
