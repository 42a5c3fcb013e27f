"""Recognizes a corpus by its content, regardless of file name and format.

Only users and texts count. Labels, contexts and row order do not, because another column of the same file may be used
as the label. The fingerprint is the sum of the hashes of all rows, so it does not depend on their order. The sketch
holds the smallest hashes of distinct rows (MinHash): if two corpora share a fraction of their rows, their sketches
share at least about that fraction (Broder, 1997).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

SKETCH_SIZE = 256  # hashes in a sketch
_BITS = 256


@dataclass(frozen=True)
class ContentSignature:
    fingerprint: str
    sketch: tuple[str, ...] = field(repr=False)


def sign_content(rows: Iterable[tuple[str, str]]) -> ContentSignature:
    """The signature of a corpus, from its (user, text) rows before any filter."""
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
