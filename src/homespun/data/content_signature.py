"""What tells a corpus again, whatever its file is called and however it is written.

A corpus is who wrote what: labels, contexts and the order of the rows do not count, because another column of the same
file may be the label. The fingerprint adds up the hashes of all rows, so that order does not matter. The sketch keeps
the smallest hashes of distinct rows: two corpora of which a share of the rows is common have at least about that share
of their sketches in common (Broder, 1997).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

SKETCH_SIZE = 256  # hashes of a sketch
_BITS = 256


@dataclass(frozen=True)
class ContentSignature:
    fingerprint: str
    sketch: tuple[str, ...] = field(repr=False)


def sign_content(rows: Iterable[tuple[str, str]]) -> ContentSignature:
    """The content of a corpus from its rows of user and text, before any filter."""
    total, least, bound = 0, set[bytes](), b"\xff" * (_BITS // 8)
    for user, text in rows:
        row = f"{len(user)} {user}{text}".encode("utf-8", "surrogatepass")
        digest = blake2b(row, digest_size=_BITS // 8).digest()
        total += int.from_bytes(digest)
        if digest < bound:
            least.add(digest)
            if len(least) > 8 * SKETCH_SIZE:
                least = set(heapq.nsmallest(SKETCH_SIZE, least))
                bound = max(least)
    sketch = tuple(digest.hex() for digest in heapq.nsmallest(SKETCH_SIZE, least))
    return ContentSignature(f"{total % 2**_BITS:064x}", sketch)
