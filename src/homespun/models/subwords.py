"""Words as byte-pair pieces (Sennrich et al., 2016): a control for closed vocabularies, which has no unknown words.

The last piece of a word ends with a mark, so that a word's pieces say where it ends: `blax` may be `b l ax_`. Words are
those of `homespun.core.words`, which never have the mark.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from tokenizers import Tokenizer, models, trainers

from homespun.core.errors import InputError
from homespun.core.words import words
from homespun.models.next_word import LONGEST_SPELLING
from homespun.models.vocabulary import UNKNOWN, Vocabulary

MARK = "_"
UNSPLIT = "__"  # stands for characters without a piece
CHARACTERS = 200  # in words; a word with another one is unknown
CACHED = 2**17  # words


@dataclass(frozen=True)
class Subwords:
    """Example:
    >>> subwords = learn_subwords(["the sea the sea the seas"], size=20)
    >>> subwords.pieces.spell(subwords.split("seas"))
    ['sea', 's_']
    """

    characters: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]  # in the order in which they are applied

    def __post_init__(self) -> None:
        known = set(self.characters)
        for first, second in self.merges:
            if first not in known or second not in known:
                raise InputError(f"sub-words: {first!r} and {second!r} are merged, but not both are pieces")
            known.add(first + second)

    @cached_property
    def pieces(self) -> Vocabulary:
        return Vocabulary(tuple(dict.fromkeys((*self.characters, *(first + last for first, last in self.merges)))))

    @cached_property
    def split(self) -> Callable[[str], tuple[int, ...]]:
        """The numbers of a word's pieces; a word that is too long to be an own word, or that has a character without a
        piece, is UNKNOWN as a whole."""
        numbers = {**self.pieces.index, UNSPLIT: UNKNOWN}
        splitter = models.BPE(numbers, list(self.merges), unk_token=UNSPLIT, end_of_word_suffix=MARK)

        @lru_cache(maxsize=CACHED)
        def split(word: str) -> tuple[int, ...]:
            if len(word.encode()) > LONGEST_SPELLING:
                return (UNKNOWN,)
            found = tuple(one.id for one in splitter.tokenize(word))
            return (UNKNOWN,) if UNKNOWN in found else found

        return split

    def to_config(self) -> dict[str, list[str]]:
        return {"characters": list(self.characters), "merges": [" ".join(pair) for pair in self.merges]}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Subwords:
        try:
            merges = [(first, second) for first, second in (pair.split(" ") for pair in config["merges"])]
            return cls(tuple(map(str, config["characters"])), tuple(merges))
        except (AttributeError, KeyError, TypeError, ValueError):
            raise InputError("sub-words: expected `characters`, a list, and `merges`, a list of pairs") from None


def learn_subwords(texts: Iterable[str], *, size: int) -> Subwords:
    """At most `size` pieces for the words of these texts, but at least one for each character."""
    counts = Counter(word for text in texts for word in words(text))
    learner = Tokenizer(models.BPE(unk_token=UNSPLIT, end_of_word_suffix=MARK))
    trainer = trainers.BpeTrainer(
        vocab_size=size + 1,
        special_tokens=[UNSPLIT, *_characters(counts)],  # in this order, or equally frequent pairs merge in any order
        end_of_word_suffix=MARK,
        limit_alphabet=CHARACTERS,
        show_progress=False,
    )
    learner.train_from_iterator(([word] * counts[word] for word in sorted(counts)), trainer)
    learned = json.loads(learner.to_str())["model"]
    merges = tuple((first, second) for first, second in learned["merges"])
    others = learned["vocab"].keys() - {UNSPLIT} - {first + second for first, second in merges}
    return Subwords(tuple(sorted(others, key=learned["vocab"].__getitem__)), merges)


def _characters(counts: Mapping[str, int]) -> list[str]:
    """The most frequent characters within words and at their end, which are marked."""
    found: Counter[str] = Counter()
    for word, count in counts.items():
        for character in word:
            found[character] += count
    kept = set(sorted(found, key=lambda one: (-found[one], one))[:CHARACTERS])
    within = kept & {character for word in counts for character in word[:-1]}
    ending = kept & {word[-1] for word in counts}
    return [*sorted(within), *(character + MARK for character in sorted(ending))]
