"""The words of a word-level model and their numbers. The four numbers before the first word have a meaning of their
own: padding, the begin of a reply, its end, and an unknown word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from homespun.core.errors import InputError
from homespun.core.words import join_words, words

PADDING, BEGIN, END, UNKNOWN = range(4)
SPECIAL = 4
UNKNOWN_WORD = "..."  # how an unknown word is written


@dataclass(frozen=True, repr=False)
class Vocabulary:
    """Example:
    >>> vocabulary = Vocabulary(("hello", "you"))
    >>> vocabulary.encode("Hello, you!")
    [4, 3, 5, 3]
    """

    known: tuple[str, ...]  # most frequent first

    def __post_init__(self) -> None:
        if len(set(self.known)) != len(self.known) or not all(word and not word.isspace() for word in self.known):
            raise InputError("vocabulary: its words must be different and not blank")

    def __len__(self) -> int:
        return SPECIAL + len(self.known)

    def __repr__(self) -> str:
        return f"<Vocabulary of {len(self.known):,} words>"

    @cached_property
    def index(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.known, start=SPECIAL)}

    def encode(self, text: str) -> list[int]:
        """The numbers of a text's words."""
        index = self.index
        return [index.get(word, UNKNOWN) for word in words(text)]

    def decode(self, numbers: Iterable[int]) -> str:
        """The text of these words."""
        return join_words(self.spell(numbers))

    def spell(self, numbers: Iterable[int]) -> list[str]:
        """These words; unknown ones as `...`."""
        return [UNKNOWN_WORD if number < SPECIAL else self.known[number - SPECIAL] for number in numbers]

    def to_lines(self) -> str:
        return "".join(f"{word}\n" for word in self.known)

    @classmethod
    def from_lines(cls, lines: str) -> Vocabulary:
        return cls(tuple(lines.splitlines()))


def most_frequent_words(texts: Iterable[str], *, size: int) -> Vocabulary:
    """A vocabulary of at most `size` numbers: the most frequent words, ties in alphabetical order."""
    counts = Counter(word for text in texts for word in words(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return Vocabulary(tuple(ranked[: max(size - SPECIAL, 0)]))


def pad_rows(rows: Sequence[Sequence[int]], *, length: int) -> list[list[int]]:
    """Rows cut or padded to `length`."""
    return [[*row[:length], *[PADDING] * (length - len(row))] for row in rows]
