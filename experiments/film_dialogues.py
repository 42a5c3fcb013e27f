"""Writes the films of `movie_dialogs.jsonl.gz` that the Cornell Movie-Dialogs Corpus has, to pre-train FedNLG on.

python experiments/film_dialogues.py movie_dialogs.jsonl.gz films.jsonl.gz
"""

import gzip
import json
import sys
from pathlib import Path


def main(source: Path, target: Path) -> None:
    kept = 0
    with gzip.open(source, "rt", encoding="utf-8") as lines, gzip.open(target, "wt", encoding="utf-8") as out:
        for line in lines:
            if json.loads(line).get("cornell"):
                out.write(line)
                kept += 1
    print(f"{target}: {kept:,} lines")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
