"""Writes a series' script without repeated scenes, to train and test FedNLG on.

    python experiments/tv_dialogues.py friends.jsonl.gz friends-scenes.jsonl.gz

Recaps and flashbacks repeat earlier scenes. A scene that shares two or more lines of at least eight words with an
earlier one is left out: with one of them in the training part and the other in the test part, a model could quote the
answer. A scene is a season, an episode and a scene number.
"""

import gzip
import json
import sys
from itertools import groupby
from pathlib import Path

from homespun.core.words import words

LONG, SHARED = 8, 2


def main(source: Path, target: Path) -> None:
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    seen: set[tuple[str, ...]] = set()
    kept, left_out = [], 0
    for _, scene in groupby(rows, key=lambda row: (row["season"], row["episode"], row["scene"])):
        scene_rows = list(scene)
        long_lines = {said for row in scene_rows if len(said := tuple(words(row["text"]))) >= LONG}
        if len(long_lines & seen) >= SHARED:
            left_out += 1
            continue
        seen |= long_lines
        kept += scene_rows
    with gzip.GzipFile(target, "wb", mtime=0) as out:  # the same source gives the same bytes
        for row in kept:
            out.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
    print(f"{target}: {len(kept):,} of {len(rows):,} lines; {left_out} repeated scenes left out")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
