"""Count how rare words are: the quantiles of OOV Expansion's figure 1, and OOV rates as in its table 1.

    python experiments/word_frequencies.py gitter.jsonl.gz lean_chat.jsonl.gz ubuntu_irc.jsonl.gz

Each corpus is a file that `homespun train` reads. The counts are written to docs/results/word-frequencies.json, or to
the file after --record; `python docs/generate.py docs/methods/oov_expansion.md` draws them. The same files give the
same bytes.

A vocabulary is the most frequent words of the first nine tenths of every user's texts, in the order of the file. OOV
rates are of the words of the last tenth: without own words, with those of the user's first nine tenths, and with those
of all texts of the user. A user has at most 1,000 own words, the most frequent ones.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from homespun.core.words import words
from homespun.data.federation import Federation
from homespun.models.next_word import LONGEST_SPELLING
from homespun.runs.training import load
from homespun.system.disk import write_whole
from homespun.system.json_files import SCHEMA

RECORD = Path("docs/results/word-frequencies.json")
FREQUENT = 10_000  # words in the figure
VOCABULARIES = (5_000, 10_000)
OWN_WORDS = 1_000  # of a user, at most


def last_tenth(texts: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """A user's texts before the last tenth, and the last tenth, which is empty for fewer than ten texts."""
    end = len(texts) - len(texts) // 10
    return texts[:end], texts[end:]


def count_words(texts: Iterable[str]) -> Counter[str]:
    return Counter(word for text in texts for word in words(text))


def most_frequent(counts: Counter[str], size: int) -> list[str]:
    """The most frequent words, ties in alphabetical order."""
    return sorted(counts, key=lambda word: (-counts[word], word))[:size]


def own_words(counts: Counter[str], vocabulary: set[str]) -> set[str]:
    """The words that a user's lexicon holds."""
    unknown = Counter({word: count for word, count in counts.items() if word not in vocabulary})
    short = Counter({word: count for word, count in unknown.items() if len(word.encode()) <= LONGEST_SPELLING})
    return set(most_frequent(short, OWN_WORDS))


def quantiles(counts: Counter[str]) -> list[float]:
    """Percentiles, from 0 to 100, of the decimal logarithm of a frequent word's occurrences in a million words."""
    frequent = np.array([counts[word] for word in most_frequent(counts, FREQUENT)], dtype=np.float64)
    found = np.quantile(np.log10(1e6 * frequent / counts.total()), np.linspace(0, 1, 101))
    return [round(float(one), 4) for one in found]


def oov_rates(federation: Federation, early: Counter[str]) -> dict[str, dict[str, float]]:
    """For each size of the vocabulary, the shares of unknown words in the last tenths of users' texts, by the texts
    whose own words are known."""
    known = {size: set(most_frequent(early, size)) for size in VOCABULARIES}
    unknown = {size: Counter({"none": 0, "training": 0, "all": 0}) for size in VOCABULARIES}
    tested = 0
    for user in range(len(federation.users)):
        first, last = map(count_words, last_tenth(federation.examples(user).texts))
        tested += last.total()
        for size, vocabulary in known.items():
            lexicons = {
                "none": set(),
                "training": own_words(first, vocabulary),
                "all": own_words(first + last, vocabulary),
            }
            for name, lexicon in lexicons.items():
                unknown[size][name] += sum(
                    count for word, count in last.items() if word not in vocabulary and word not in lexicon
                )
    return {str(size): {name: round(count / tested, 6) for name, count in one.items()} for size, one in unknown.items()}


def count_corpus(federation: Federation) -> dict[str, Any]:
    early: Counter[str] = Counter()
    late: Counter[str] = Counter()
    for user in range(len(federation.users)):
        first, last = last_tenth(federation.examples(user).texts)
        early.update(count_words(first))
        late.update(count_words(last))
    return {
        "users": len(federation.users),
        "words": early.total() + late.total(),
        "different": len(early.keys() | late.keys()),
        "tested": late.total(),
        "log10_per_million": quantiles(early + late),
        "oov": oov_rates(federation, early),
    }


def write_counts(path: Path, corpora: dict[str, dict[str, Any]]) -> None:
    """One line for each corpus."""
    about = {"schema": SCHEMA, "frequent": FREQUENT, "own_words": OWN_WORDS}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(counts)}" for name, counts in corpora.items())
    write_whole(path, f'{json.dumps(about)[:-1]}, "corpora": {{\n{lines}\n}}}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("corpora", nargs="+", type=Path)
    parser.add_argument("--record", type=Path, default=RECORD)
    arguments = parser.parse_args()
    found = {}
    for path in arguments.corpora:
        found[path.name.partition(".")[0]] = counts = count_corpus(load(path))
        print(
            f"{path.name}: {counts['words']:,} words of {counts['users']:,} users, OOV rates {counts['oov']}",
            flush=True,
        )
    arguments.record.parent.mkdir(parents=True, exist_ok=True)
    write_counts(arguments.record, found)


if __name__ == "__main__":
    main()
