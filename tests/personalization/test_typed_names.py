r"""A user id may contain characters that cannot be typed, such as NUL: `--user 'a\x00b'` means the id with this literal
text or, if there is none, the id that is displayed like this."""

import json

import pytest
from spoken_corpus import MINE, train_small
from typer.testing import CliRunner

from homespun import load, reopen, train
from homespun.cli import app
from homespun.core.escaping import name_candidates
from homespun.methods.furl import SMALL

NUL, TYPED = "a\x00b", r"a\x00b"
LITERAL = r"c\x00d"  # backslash and all
USERS = (NUL, LITERAL, "c\x00d", "plain")


def invoked(*arguments, code=0):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output + repr(done.exception)
    return done


@pytest.fixture
def folder(tmp_path):
    rows = [{"user": user, "text": f"good day {day}", "label": "ab"[day % 2]} for user in USERS for day in range(10)]
    (tmp_path / "posts.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    settings = {"rounds": 1, "cohort": "all", "workers": 0, **SMALL}
    train("furl", load(tmp_path / "posts.jsonl"), folder=tmp_path / "run", **settings).close()
    return tmp_path / "run"


def test_readings_of_a_typed_name():
    assert name_candidates("plain") == ("plain",)
    assert name_candidates(TYPED) == (TYPED, NUL)
    assert name_candidates(r"\u0041\U0001f600\xzz\n") == (r"\u0041\U0001f600\xzz\n", "A\U0001f600" + r"\xzz\n")
    assert name_candidates(r"\Uffffffff") == (r"\Uffffffff",)


def test_a_literal_name_takes_precedence_over_an_escaped_one(folder):
    def predicted(typed):
        return json.loads(invoked("predict", folder, "good day", "--user", typed, "--json").stdout)["user"]

    assert predicted(TYPED) == NUL
    assert predicted(LITERAL) == LITERAL
    assert predicted(r"c\u0000d") == "c\x00d"


def test_a_listed_user_can_be_exported_and_forgotten(folder, tmp_path):
    assert TYPED in invoked("vault", "list", folder).stdout
    invoked("vault", "export", folder, TYPED, "-o", "mine.safetensors")
    with reopen(folder) as run:
        assert (tmp_path / "mine.safetensors").read_bytes() == run.vault.export(NUL)
    assert invoked("vault", "forget", folder, TYPED).stdout == f"removed the private parameters of {TYPED}\n"
    invoked("vault", "forget", folder, LITERAL)
    with reopen(folder) as run:
        assert sorted(run.vault.users()) == ["c\x00d", "plain"]
    assert "no private parameters" in str(invoked("vault", "forget", folder, TYPED, code=1).exception)


def test_a_new_user_from_a_table(folder, tmp_path):
    rows = [{"user": user, "text": f"good day {day}", "label": "a"} for user in ("n\x00w", "other") for day in range(5)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    invoked("personalize", folder, "mine.jsonl", "--user", r"n\x00w")
    with reopen(folder) as run:
        assert run.vault.private("n\x00w") is not None


def test_a_new_user_from_a_text_has_the_typed_name(tmp_path):
    train_small(tmp_path).close()
    (tmp_path / "mine.txt").write_text(MINE)
    invoked("personalize", "run", "mine.txt", "--user", TYPED, "--context", "written")
    with reopen(tmp_path / "run") as run:
        assert run.vault.private(TYPED) is not None
    spoken = ["--user", TYPED, "--context", "written"]
    assert json.loads(invoked("generate", "run", "We must", *spoken, "--json").stdout)["user"] == TYPED
    assert invoked("export", "run", *spoken, "--output", "adapter").stdout == f"adapter: {TYPED}, written\n"
