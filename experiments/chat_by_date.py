"""Writes a chat in the order of time, with at most so many of the last texts of each user, for OOV Expansion.

    python experiments/chat_by_date.py gitter.jsonl.gz gitter-by-date.jsonl.gz 50 200

The last two numbers are the fewest texts of a user, and the most. With `split_by = "order"`, a user's last texts are
then the test part: own words that occur there for the first time cannot be known, as on a real keyboard.
"""

import gzip
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any


def main(source: Path, target: Path, fewest: int, most: int) -> None:
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        rows = sorted(map(json.loads, lines), key=lambda row: row["date"])  # stable: a day keeps its order
    by_user: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_user[row["user"]].append(row)
    kept = {user: some[-most:] for user, some in sorted(by_user.items()) if len(some) >= fewest}
    with gzip.GzipFile(target, "wb", mtime=0) as out:  # the same source gives the same bytes
        for some in kept.values():
            for row in some:
                out.write((json.dumps({"user": row["user"], "text": row["text"]}, ensure_ascii=False) + "\n").encode())
    print(f"{target}: {sum(map(len, kept.values())):,} texts of {len(kept)} users")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
