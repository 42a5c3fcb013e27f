"""Measures how much of the evaluated text is in the training text.

A sentence overlaps if 13 consecutive words of it occur in the training text, lower-cased and without punctuation.
Shorter sentences are not counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from homespun.core.errors import DataError

RUN = 13  # words
LIMIT = 0.001  # of the evaluated sentences

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower().replace("’", "'"))


def runs(text: str, length: int = RUN) -> Iterator[str]:
    """Every run of `length` consecutive words."""
    found = words(text)
    return (" ".join(found[start : start + length]) for start in range(len(found) - length + 1))


@dataclass(frozen=True)
class Overlap:
    """`sentences` are long enough to count, `found` of them overlap; `sources` has the number found in each source."""

    sentences: int
    found: int
    sources: Mapping[str, int]

    @property
    def share(self) -> float:
        return self.found / self.sentences if self.sentences else 0.0


def measure(evaluated: Iterable[str], texts: Mapping[str, Sequence[str]], *, length: int = RUN) -> Overlap:
    """The overlap of evaluated sentences with the paragraphs of each source."""
    sentences = [own for sentence in evaluated if (own := frozenset(runs(sentence, length)))]
    wanted = frozenset[str]().union(*sentences)
    seen = {
        name: {run for paragraph in paragraphs for run in runs(paragraph, length) if run in wanted}
        for name, paragraphs in texts.items()
    }
    every = frozenset[str]().union(*seen.values())
    return Overlap(
        sentences=len(sentences),
        found=sum(not own.isdisjoint(every) for own in sentences),
        sources={name: sum(not own.isdisjoint(one) for own in sentences) for name, one in seen.items() if one},
    )


def without_overlap(evaluated: Iterable[str], paragraphs: Iterable[str], *, length: int = RUN) -> list[str]:
    """The paragraphs that share no run of words with an evaluated sentence."""
    wanted = frozenset(run for sentence in evaluated for run in runs(sentence, length))
    return [paragraph for paragraph in paragraphs if not any(run in wanted for run in runs(paragraph, length))]


def require_low_overlap(overlap: Overlap, *, limit: float = LIMIT) -> None:
    """Raise if the training text contains too much of the evaluated text."""
    if overlap.share <= limit:
        return
    worst = sorted(overlap.sources.items(), key=lambda item: -item[1])[:3]
    named = ", ".join(f"{name} ({count} sentences)" for name, count in worst)
    raise DataError(
        f"the training text overlaps with {overlap.found} of {overlap.sentences} evaluated sentences "
        f"({overlap.share:.2%}, at most {limit:.2%} is allowed). Worst: {named}. Leave these out, or drop the "
        "overlapping paragraphs with --drop-overlap."
    )
