"""Canaries: words of one user that must be nowhere but in what is that user's own, and a search for them in bytes."""

import base64
import json
import random
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import cache
from html import escape
from pathlib import Path
from unicodedata import normalize
from urllib.parse import quote

import numpy as np
from plotly.offline import get_plotlyjs

NUMBERS = ("u1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8")  # bytes of a spelling as numbers of a tensor


def canaries(users: list[str]) -> dict[str, list[str]]:
    """Two words for each user, one of them with letters outside ASCII."""
    found = {}
    for place, user in enumerate(users):
        drawn = random.Random(place)
        one, other = ("".join(drawn.choices("bcdfgjklmnpqrstvwxz", k=10)) for _ in range(2))
        found[user] = [one, f"{other[:5]}öž{other[5:]}"]
    return found


@cache
def forms(word: str) -> Mapping[bytes, str]:
    """The bytes that a word can have in a message or a file, with the name of the form."""
    cased = {"": word, "upper ": word.upper(), "title ": word.title()}
    texts = {f"{name}text": one for name, one in cased.items()}
    texts |= {f"{name}ascii": ascii(one)[1:-1] for name, one in cased.items()}
    texts |= {f"{name}json": json.dumps(one)[1:-1] for name, one in cased.items()}
    spelled = list(word.encode())
    texts |= {
        "decomposed": normalize("NFD", word),
        "html": escape(word).encode("ascii", "xmlcharrefreplace").decode(),
        "url": quote(word),
        "bytes": repr(word.encode())[2:-1],
        "list": ", ".join(map(str, spelled)),
        "short list": ",".join(map(str, spelled)),
        "backwards": word[::-1],
    }
    raw = {name: text.encode() for name, text in texts.items()}
    raw |= {f"numbers {kind}": np.array(spelled).astype(kind).tobytes() for kind in NUMBERS}
    raw |= {f"numbers > {kind}": np.array(spelled).astype(kind.replace("<", ">")).tobytes() for kind in NUMBERS[1:]}
    coded = {}
    for name, found in raw.items():
        coded[f"hex of {name}"] = found.hex().encode()
        coded[f"upper hex of {name}"] = found.hex().upper().encode()
        for shift in range(3):  # the inner part of base64 depends on the position only
            whole = base64.b64encode(bytes(shift) + found + bytes(3))
            coded[f"base64 {shift} of {name}"] = whole[4 if shift else 0 : (shift + len(found)) // 3 * 4]
    return {form: name for name, form in reversed({**raw, **coded}.items())}  # of equal forms, the first name


def traces(content: bytes, words: list[str]) -> list[str]:
    """The forms of these words that a content has."""
    return [f"{word}: {name}" for word in words for form, name in forms(word).items() if form in content]


def vault_traces(path: Path, words: Mapping[str, list[str]]) -> Iterator[str]:
    """Words that a vault has outside of the rows and artefacts of their owner."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in db.execute(f"SELECT * FROM {table}"):
                cells = [cell if isinstance(cell, bytes) else str(cell).encode() for cell in row]
                for owner, own in words.items():
                    key = owner.encode()
                    theirs = (
                        key in cells if table == "private" else cells[0].startswith(b"artefact/" + key.hex().encode())
                    )
                    if not theirs:
                        yield from (f"{table}: {one}" for one in traces(b"\0".join(cells), own))


def file_traces(folder: Path, words: list[str], *, without: set[Path] = frozenset()) -> list[str]:
    """The words that files below a folder have, in their names or contents. The charts' library, which is most of a
    report, is not searched."""
    library, found = get_plotlyjs().encode(), []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path not in without:
            name = str(path.relative_to(folder))
            content = name.encode() + b"\0" + path.read_bytes().replace(library, b"")
            found += [f"{name}: {one}" for one in traces(content, words)]
    return found
