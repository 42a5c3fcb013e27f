"""A corpus is recognized under another name, in another format, or with some rows changed."""

import csv
import gzip
import json

from homespun.data import load_federation
from homespun.data.content_signature import SKETCH_SIZE, sign_content

ROWS = [(f"u{user}", f"word {user} {row}") for user in range(50) for row in range(20)]


def shared(one, other):
    return len({*one.sketch} & {*other.sketch}) / SKETCH_SIZE


def test_order_and_format_do_not_matter(tmp_path):
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("user", "text", "label"), *((*row, "x") for row in ROWS)])
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    lines = [json.dumps({"text": text, "user": user, "mood": "y"}) for user, text in reversed(ROWS)]
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    found = [load_federation(tmp_path / name).content for name in ("a.csv", "b.csv.gz", "c.jsonl")]
    assert found[0] == found[1] == found[2] == sign_content(ROWS) and len(found[0].sketch) == SKETCH_SIZE


def test_filters_do_not_matter(tmp_path):
    (tmp_path / "a.csv").write_text("user,text\n" + "\n".join(f"{user},{text}" for user, text in ROWS))
    found = load_federation(tmp_path / "a.csv", settings={"max_users": 3})
    assert len(found.users) == 3 and found.content == sign_content(ROWS)


def test_every_row_counts_and_where_a_name_ends():
    whole = sign_content(ROWS)
    assert sign_content(ROWS[1:]).fingerprint != whole.fingerprint != sign_content([*ROWS, ROWS[0]]).fingerprint
    assert sign_content([("ab", "c")]).fingerprint != sign_content([("a", "bc")]).fingerprint
    assert sign_content([("a", "b"), ("c", "d")]).fingerprint != sign_content([("a", "d"), ("c", "b")]).fingerprint


def test_sketches_share_what_corpora_share():
    whole = sign_content(ROWS)
    edited = sign_content([(user, text + "!") if text.endswith(" 7") else (user, text) for user, text in ROWS])
    other = sign_content([(user, f"another {text}") for user, text in ROWS])
    assert 0.85 < shared(whole, edited) < 1 and shared(whole, other) == 0
    assert 0.35 < shared(whole, sign_content(ROWS[:500])) < 0.65  # half of the users
    assert (
        sign_content(ROWS[:5]).sketch == sign_content([*ROWS[:5], ROWS[2]]).sketch
    )  # a row that comes twice counts once
