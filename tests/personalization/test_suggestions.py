"""Suggestions of a trained run, and the lexicon that a user can read and change."""

from datetime import date

import pytest
import torch
from typer.testing import CliRunner

import homespun
from homespun.cli import app
from homespun.core.errors import InputError, RunError, UnknownNameError
from homespun.data import load_federation
from homespun.methods.oov_expansion import SMALL
from homespun.personalization.own_words import add_words, forget_words, own_words
from homespun.personalization.suggestions import find_suggester, suggest, suggester_with
from homespun.runs.training import prepare, reopen
from homespun.runs.vault import VAULT_FILE

VALUES = {
    **SMALL, "rounds": 20, "cohort": "all", "workers": 0, "lr": 1.0, "batch": 2, "server": "fedavg", "server_lr": 1.0,
    "clip_norm": 1.0, "personalize_lrs": (0.1, 0.3, 1.0), "adapter_scales": (0.1,), "adapters": ((8,),),
    "personalize_epochs": 20, "validation_share": 0.3,
}  # fmt: skip
ENDS = ("time", "peace")


def rows_of(user, own, count=30):
    return [{"user": user, "text": f"we need {own} and now we should do more in {ENDS[n % 2]}"} for n in range(count)]


@pytest.fixture
def folder(tmp_path):
    federation = load_federation([*rows_of("ada", "zorblax"), *rows_of("bo", "quibnor")])
    with prepare("oov_expansion", federation, folder=tmp_path / "run", settings=VALUES) as run:
        list(run.rounds())
    return tmp_path / "run"


def reopened(folder, **options):
    return reopen(
        folder, federation=load_federation([*rows_of("ada", "zorblax"), *rows_of("bo", "quibnor")]), **options
    )


def test_own_words_are_suggested_to_their_user_only(folder):
    with reopened(folder) as run:
        found = suggest(run, "We need", user="ada")
        assert len(found) == 3 and found == suggest(run, "we need", user="ada", k=201)[:3]
        assert [one.word for one in suggest(run, "we need", user="ada", k=201) if one.own] == ["zorblax"]
        assert [one.word for one in suggest(run, "we need", user="ada", prefix="Zo")] == ["zorblax"]
        assert suggest(run, "we need", user="bo", prefix="zo") == suggest(run, "we need", prefix="zo") == []
        assert homespun.suggest(run, "we need", user="ada") == found
        with pytest.raises(UnknownNameError, match="adda"):
            suggest(run, "we", user="adda")
        with pytest.raises(InputError, match="k: 0 suggestions"):
            suggest(run, "we", k=0)


def test_a_lexicon_can_be_read_and_changed(folder):
    with reopened(folder, read_only=False) as run:
        (one,) = own_words(run, "ada")
        assert (one.word, one.since) == ("zorblax", None) and one.count > 5
        assert add_words(run, "ada", ["Flimjab", "zorblax"], today=date(2026, 1, 2)) == ["flimjab"]
        assert [(one.word, one.count, one.since) for one in own_words(run, "ada")][1] == (
            "flimjab",
            0,
            date(2026, 1, 2),
        )
        assert [one.word for one in suggest(run, "we", user="ada", prefix="fl")] == ["flimjab"]
        for wrong, expected in (
            ("two words", "one word"),
            ("we", "vocabulary"),
            ("z" * 99, "longer"),
            ("", "one word"),
        ):
            with pytest.raises(InputError, match=expected):
                add_words(run, "ada", [wrong])
        with pytest.raises(
            InputError, match=r"words of 'ada': 'zorblaks' is not in the lexicon. Did you mean 'zorblax'"
        ):
            forget_words(run, "ada", ["zorblaks"])


def test_a_forgotten_word_is_gone_from_the_files(folder):
    def somewhere(word):
        return any(word in path.read_bytes() for path in folder.glob(f"{VAULT_FILE}*"))

    with reopened(folder, read_only=False) as run:
        add_words(run, "ada", ["flimjab"])
    assert somewhere(b"zorblax") and somewhere(b"flimjab")
    with reopened(folder, read_only=False) as run:
        assert forget_words(run, "ada", ["zorblax", "flimjab"]) == ["zorblax", "flimjab"]
    assert not somewhere(b"zorblax") and not somewhere(b"flimjab") and somewhere(b"quibnor")
    with reopened(folder) as run:
        assert own_words(run, "ada") == []
        assert len(find_suggester(run, "ada").words) == 200


def test_a_model_that_diverged(folder):
    with reopened(folder) as run:
        broken = {"output.bias": torch.full((204,), torch.nan)}
        with pytest.raises(RunError, match="not finite"):
            suggester_with(run, broken)


def test_a_run_without_own_words(tmp_path):
    with prepare(
        "oov_expansion", load_federation(rows_of("ada", "zorblax")), folder=tmp_path,
        settings={**VALUES, "rounds": 1, "own_words": "none"},
    ) as run:  # fmt: skip
        list(run.rounds())
        assert len(suggest(run, "we need", user="ada")) == 3
        with pytest.raises(RunError, match="own_words = none"):
            own_words(run, "ada")


def test_the_commands(folder, tmp_path):
    """A run whose corpus is a file; a new user from a text file."""
    from json import dumps, loads

    chat, mine = tmp_path / "chat.jsonl", tmp_path / "mine.txt"
    chat.write_text("".join(dumps(row) + "\n" for row in [*rows_of("ada", "zorblax"), *rows_of("bo", "quibnor")]))
    mine.write_text("".join(row["text"].capitalize() + ".\n" for row in rows_of("eve", "wumpfel")))
    place = str(tmp_path / "from file")

    def call(*words, code=0):
        found = CliRunner().invoke(app, [str(word) for word in words])
        assert found.exit_code == code, (found.output, found.exception)
        return found.output

    settings = [option for name, value in VALUES.items() for option in ("--set", f"{name}={dumps(value)}")]
    call("train", "oov_expansion", "--data", chat, "--folder", place, *settings)
    assert "zorblax *" in call("suggest", place, "we need", "--user", "ada", "--prefix", "z")
    assert "zorblax  typed " in call("words", place, "--user", "ada")
    said = call("personalize", place, mine, "--user", "eve")
    assert "eve: personalized by a custom procedure from 30 examples" in said and "EMR3 went from" in said
    found = loads(call("words", place, "--user", "eve", "--json"))["words"]
    assert [one["word"] for one in found] == ["wumpfel"] and found[0]["since"]
    assert "wumpfel *" in call("suggest", place, "we need", "--user", "eve", "--prefix", "w", "-k", 9)
    assert "added flimjab" in call("words", place, "--user", "eve", "--add", "flimjab")
    exported = tmp_path / "words.txt"
    call("words", place, "--user", "eve", "--export", exported)
    assert exported.read_text() == "wumpfel\nflimjab\n" and exported.stat().st_mode & 0o777 == 0o600
    assert "removed wumpfel" in call("words", place, "--user", "eve", "--forget", "wumpfel")
    assert loads(call("suggest", place, "we need", "--prefix", "qqq", "--json"))["suggestions"] == []
