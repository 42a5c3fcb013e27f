"""The TV set: which users are kept, what an utterance is, and that the output is deterministic."""

import gzip
import json
import runpy
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "experiments" / "tv_set.py"


def written(path, lines):
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    return str(path)


def series(context, users, *, text="It is so. You see?"):
    """The first of the users has the most lines, the last has one."""
    return [
        {"user": user, "context": context, "season": 1, "text": text}
        for lines, user in enumerate(reversed(users), 1)
        for _ in range(lines)
    ]


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    runpy.run_path(str(SCRIPT), run_name="__main__")


def test_the_most_talkative_of_both_series_sentence_by_sentence(tmp_path, monkeypatch, capsys):
    friends = series("F", [f"f{number}" for number in range(8)])
    thrones = series("G", [f"g{number:02}" for number in range(14)])
    thrones.insert(0, {"user": "g00", "context": "G", "text": "What d’you expect? “They’re savages.” Go now."})
    sources = written(tmp_path / "friends.jsonl.gz", friends), written(tmp_path / "thrones.jsonl.gz", thrones)
    out, again = tmp_path / "new" / "out.jsonl.gz", tmp_path / "again.jsonl.gz"
    run(monkeypatch, *sources, str(out))
    lines = [json.loads(line) for line in gzip.decompress(out.read_bytes()).decode().splitlines()]
    assert {line["user"] for line in lines if line["context"] == "F"} == {f"f{number}" for number in range(6)}
    assert {line["user"] for line in lines if line["context"] == "G"} == {f"g{number:02}" for number in range(13)}
    # f0 to f5 have 8, 7, ... 3 lines; g00 to g12 have 14, 13, ... 2, and g00 one more; "You see?" is too short
    assert sum(line["context"] == "F" for line in lines) == 33
    assert [line["text"] for line in lines if line["text"] != "It is so."] == ["What d'you expect?"]
    assert lines[0].keys() == {"user", "context", "text"}
    assert "138 utterances of 19 users" in capsys.readouterr().out
    run(monkeypatch, *sources, str(again))
    assert out.read_bytes() == again.read_bytes()


def test_of_equally_talkative_users_the_first_in_the_alphabet():
    names = [{"user": user} for user in ("c", "b", "a", "c")]
    assert runpy.run_path(str(SCRIPT))["most_talkative"](names, 2) == ["c", "a"]
