"""Write the TV set of FedPerC's appendix: a few leading characters of two series, one sentence per utterance.

    python experiments/tv_set.py FRIENDS GAME_OF_THRONES OUT

Both sources and OUT are .jsonl.gz files of records with `user`, `context` and `text`; the series is the context.
The leading characters are those with the most lines in their source. The same sources give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from homespun.data.sentences import split_sentences

FRIENDS_LEADS, THRONES_LEADS = 6, 13
FEWEST_WORDS = 3
STRAIGHT = str.maketrans("‘’“”", "''\"\"")

Line = dict[str, str]


def read_lines(path: Path) -> list[Line]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def most_talkative(lines: Iterable[Line], count: int) -> list[str]:
    """The users with the most lines; ties are broken alphabetically."""
    spoken = Counter(line["user"] for line in lines)
    return sorted(spoken, key=lambda user: (-spoken[user], user))[:count]


def utterances(lines: Iterable[Line], users: Iterable[str]) -> Iterator[Line]:
    """Sentences of these users that are long enough, in the order of the source."""
    kept = set(users)
    for line in lines:
        if line["user"] not in kept:
            continue
        for sentence in split_sentences(line["text"].translate(STRAIGHT)):
            if len(sentence.split()) >= FEWEST_WORDS:
                yield {"user": line["user"], "context": line["context"], "text": sentence}


def write_lines(path: Path, lines: Iterable[Line]) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))  # no timestamp, so that equal texts give equal files


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("friends", "game_of_thrones", "out"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    merged: list[Line] = []
    for source, count in ((arguments.friends, FRIENDS_LEADS), (arguments.game_of_thrones, THRONES_LEADS)):
        lines = read_lines(source)
        merged += utterances(lines, most_talkative(lines, count))
    write_lines(arguments.out, merged)
    for (context, user), count in sorted(Counter((line["context"], line["user"]) for line in merged).items()):
        print(f"{context}\t{user}\t{count}")
    print(f"{len(merged)} utterances of {len({line['user'] for line in merged})} users in {arguments.out}")


if __name__ == "__main__":
    main()
