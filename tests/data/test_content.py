"""What tells a corpus again under another name, in another format, or with some rows changed."""

import csv
import gzip
import json

from homespun.data import load_federation
from homespun.data.content import KEPT, content_of

ROWS = [(f"u{user}", f"word {user} {row}") for user in range(50) for row in range(20)]


def shared(one, other):
    return len({*one.sketch} & {*other.sketch}) / KEPT


def test_order_and_format_do_not_matter(tmp_path):
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("user", "text", "label"), *((*row, "x") for row in ROWS)])
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    lines = [json.dumps({"text": text, "user": user, "mood": "y"}) for user, text in reversed(ROWS)]
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    found = [load_federation(tmp_path / name).content for name in ("a.csv", "b.csv.gz", "c.jsonl")]
    assert found[0] == found[1] == found[2] == content_of(ROWS) and len(found[0].sketch) == KEPT


def test_filters_do_not_matter(tmp_path):
    (tmp_path / "a.csv").write_text("user,text\n" + "\n".join(f"{user},{text}" for user, text in ROWS))
    found = load_federation(tmp_path / "a.csv", settings={"max_users": 3})
    assert len(found.users) == 3 and found.content == content_of(ROWS)


def test_every_row_counts_and_where_a_name_ends():
    whole = content_of(ROWS)
    assert content_of(ROWS[1:]).fingerprint != whole.fingerprint != content_of([*ROWS, ROWS[0]]).fingerprint
    assert content_of([("ab", "c")]).fingerprint != content_of([("a", "bc")]).fingerprint
    assert content_of([("a", "b"), ("c", "d")]).fingerprint != content_of([("a", "d"), ("c", "b")]).fingerprint


def test_sketches_share_what_corpora_share():
    whole = content_of(ROWS)
    edited = content_of([(user, text + "!") if text.endswith(" 7") else (user, text) for user, text in ROWS])
    other = content_of([(user, f"another {text}") for user, text in ROWS])
    assert 0.85 < shared(whole, edited) < 1 and shared(whole, other) == 0
    assert 0.35 < shared(whole, content_of(ROWS[:500])) < 0.65  # half of the people
    assert content_of(ROWS[:5]).sketch == content_of([*ROWS[:5], ROWS[2]]).sketch  # a row that comes twice counts once
