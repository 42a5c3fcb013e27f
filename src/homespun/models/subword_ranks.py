"""Where a word stands among all words that a model of pieces can suggest, and how much of it has to be typed.

The probability of a word is that of its pieces, the last of which is marked as the end of a word. Other pieces that
spell the same word are not how words are split, so that training never has them, and do not count.

No list of words exists to sort. But a word is one of three suggestions if fewer than three words are likelier, and a
word is at most as likely as the pieces it begins with. So the search extends only beginnings that are likelier than the
whole target, and stops as soon as three words are: it is exact, and mostly stops at the first piece.

A model for which thousands of beginnings are likelier than a target, such as one that has diverged, would make the
search endless. So at most MOST beginnings are extended for a target. If one that is left out could still change the
result, the target counts as not suggested, and as typed in full.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from homespun.models.next_word import LONGEST_SPELLING
from homespun.models.subwords import MARK, Subwords
from homespun.models.suggestion_ranks import AFTER_ALL, SUGGESTED
from homespun.models.vocabulary import SPECIAL

MOST = 5000  # beginnings that are extended for a target; nearly all need far fewer
ROWS = 1024  # beginnings whose next pieces are scored at once


class PieceModel(Protocol):
    """Predicts pieces one at a time, for many hypotheses at once. States are [hypotheses, ...]."""

    def advance(self, states: Tensor, pieces: Tensor) -> Tensor:
        """The states after one more piece [hypotheses]."""

    def log_probs(self, states: Tensor) -> Tensor:
        """Of every piece [hypotheses, pieces]."""


@dataclass(frozen=True)
class Target:
    """A word at its place in a text, with the logarithm of its probability."""

    word: str
    log_prob: float


@dataclass
class Progress:
    """What is known about one target: how many likelier words begin with its first letters, for each number of letters,
    up to `SUGGESTED`; and the smallest number of letters with fewer."""

    target: Target
    likelier: list[int] = field(init=False)
    letters: int = 0
    left_out: list[str] = field(default_factory=list)  # the texts of beginnings that are not extended

    def __post_init__(self) -> None:
        self.likelier = [0] * (len(self.target.word) + 1)

    @property
    def open(self) -> bool:
        return self.letters < len(self.likelier)

    @property
    def prefix(self) -> str:
        return self.target.word[: self.letters]

    def count(self, shared: int) -> None:
        """A likelier word shares this many first letters with the target."""
        for letters in range(self.letters, shared + 1):
            self.likelier[letters] += 1
        self.settle()

    def settle(self) -> None:
        """Type letters until fewer than SUGGESTED likelier words are left."""
        while self.open and self.likelier[self.letters] >= SUGGESTED:
            self.letters += 1

    def needs(self, text: str) -> bool:
        """Whether words that begin with this text may still change what is known."""
        return self.open and (text.startswith(self.prefix) or self.prefix.startswith(text))

    @property
    def exact(self) -> bool:
        return not any(map(self.needs, self.left_out))

    def found(self) -> tuple[int, int]:
        """The rank, or SUGGESTED for a word that is not suggested, and the letters that its suggestion saves."""
        if not self.open or not self.exact:
            return SUGGESTED, 0
        return self.likelier[0] if self.letters == 0 else SUGGESTED, len(self.target.word) - self.letters


@dataclass(frozen=True)
class Beginning:
    """Pieces that a likelier word may begin with."""

    owner: int  # the place of the target
    text: str = ""
    pieces: tuple[int, ...] = ()
    log_prob: float = 0.0

    def extend(self, piece: int, text: str, log_prob: float) -> Beginning:
        return Beginning(self.owner, self.text + text, (*self.pieces, piece), self.log_prob + log_prob)


class SubwordRanking:
    """Ranks words among all that pieces can spell; `longest` is the maximum number of pieces."""

    def __init__(self, subwords: Subwords, *, longest: int = LONGEST_SPELLING) -> None:
        self.subwords, self.longest = subwords, longest
        marked = {number: text for number, text in enumerate(subwords.pieces.known, SPECIAL) if text.endswith(MARK)}
        self._ends = SortedPieces({number: text[: -len(MARK)] for number, text in marked.items()})
        others = {number: text for number, text in enumerate(subwords.pieces.known, SPECIAL) if number not in marked}
        self._begins = SortedPieces(others)
        self._whole = np.array([subwords.split(text) == (number,) for number, text in self._ends])

    @torch.no_grad()
    def __call__(self, model: PieceModel, states: Tensor, targets: Sequence[Target]) -> np.ndarray:
        """[targets, 2]: rank and saved letters of each target, from the state of the model before it [targets, ...]."""
        return np.array([one.found() for one in self.search(model, states, targets)], dtype=np.float32).reshape(-1, 2)

    def search(self, model: PieceModel, states: Tensor, targets: Sequence[Target]) -> list[Progress]:
        progress, extended = [Progress(target) for target in targets], Counter[int]()
        beginnings = [Beginning(owner) for owner in range(len(targets))]
        for _ in range(self.longest):
            longer = list[tuple[int, Beginning]]()
            for start in range(0, len(beginnings), ROWS):
                scores = model.log_probs(states[start : start + ROWS]).numpy(force=True)
                for place, row in enumerate(scores, start):
                    longer += [(place, one) for one in self._extend(beginnings[place], row, progress, extended)]
            kept = [(place, one) for place, one in longer if progress[one.owner].needs(one.text)]
            if not kept:
                break
            origin, beginnings = [place for place, _ in kept], [one for _, one in kept]
            states = model.advance(states[origin], torch.tensor([one.pieces[-1] for one in beginnings]))
        return progress

    def _extend(
        self, one: Beginning, row: np.ndarray, progress: Sequence[Progress], extended: Counter[int]
    ) -> list[Beginning]:
        """Count the words that end with the next piece, of which `row` has the log-probabilities. Return the longer
        beginnings; `extended` is how many of each target there were."""
        target = progress[one.owner]
        if not target.needs(one.text):
            return []
        likelier = row > target.target.log_prob - one.log_prob
        if one.pieces:
            self._count_words(one, likelier, target)
        else:
            self._count_whole_words(likelier, target)
        if not target.needs(one.text):
            return []
        numbers, texts = self._begins.that_fit(target.prefix[len(one.text) :], likelier)
        best = np.argsort(-row[numbers], kind="stable")[: MOST - extended[one.owner]]
        extended[one.owner] += len(best)
        if len(best) < len(numbers):
            target.left_out.append(one.text)
        return [one.extend(int(numbers[some]), texts[some], row[numbers[some]]) for some in best]

    def _count_whole_words(self, likelier: np.ndarray, target: Progress) -> None:
        """Words of one piece."""
        word = target.target.word
        above = likelier[self._ends.numbers] & self._whole
        above[self._ends.places_of([word])] = False
        counted = np.concatenate(([0], np.cumsum(above)))
        for letters in range(len(word) + 1):
            start, end = self._ends.beginning_with(word[:letters])
            target.likelier[letters] = int(counted[end] - counted[start])
        target.settle()

    def _count_words(self, one: Beginning, likelier: np.ndarray, target: Progress) -> None:
        """Words of several pieces."""
        word = target.target.word
        numbers, texts = self._ends.that_fit(target.prefix[len(one.text) :], likelier, whole=True)
        for number, text in zip(numbers.tolist(), texts, strict=True):
            spelled = one.text + text
            if not target.open:
                return
            if spelled == word or not spelled.startswith(target.prefix):
                continue
            if self.subwords.split(spelled) == (*one.pieces, number):
                target.count(shared_letters(spelled, word))


class SortedPieces:
    """Pieces in the order of their texts."""

    def __init__(self, pieces: Mapping[int, str]) -> None:
        order = sorted(pieces, key=pieces.__getitem__)
        self.numbers, self.texts = np.array(order, dtype=np.int64), [pieces[number] for number in order]
        self._place = {text: place for place, text in enumerate(self.texts)}

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return zip(self.numbers.tolist(), self.texts, strict=True)

    def places_of(self, texts: Iterable[str]) -> np.ndarray:
        """The places of those of these texts that are pieces."""
        return np.array([self._place[text] for text in texts if text in self._place], dtype=np.int64)

    def beginning_with(self, text: str) -> tuple[int, int]:
        """The places of the pieces that begin with this text."""
        start = bisect_left(self.texts, text)
        return start, bisect_left(self.texts, text + AFTER_ALL, lo=start)

    def that_fit(self, text: str, among: np.ndarray, *, whole: bool = False) -> tuple[np.ndarray, list[str]]:
        """Numbers and texts of the pieces, among some of all pieces, that begin with this text or, unless it has to be
        whole, with which it begins."""
        start, end = self.beginning_with(text)
        places = np.flatnonzero(among[self.numbers[start:end]]) + start
        if not whole:
            shorter = self.places_of(text[:letters] for letters in range(1, len(text)))
            places = np.concatenate((places, shorter[among[self.numbers[shorter]]]))
        return self.numbers[places], [self.texts[place] for place in places]


def shared_letters(one: str, other: str) -> int:
    """How many first letters two words share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
