"""The line editor, driven through a real key parser, and what is learned of what was typed."""

import click
import pytest
import torch

pytest.importorskip("prompt_toolkit")
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from typer.testing import CliRunner

from homespun.cli import app
from homespun.cli.typing_editor import choose_words, read_lines
from homespun.data.source import DataSettings
from homespun.methods.oov_expansion import SMALL
from homespun.models.next_word import NextWord
from homespun.models.suggester import Suggester
from homespun.models.vocabulary import Vocabulary
from homespun.personalization.live_text import LiveText
from homespun.runs.training import prepare
from homespun.runs.vault import Vault

WORDS = Vocabulary(("the", "sea", "is", "blue"))
F2, LEFT, CTRL_D, CTRL_C = "\x1bOQ", "\x1b[D", "\x04", "\x03"


def typed(keys):
    torch.manual_seed(2)
    network = NextWord(WORDS, byte_dim=5, cells=6)
    live = LiveText(Suggester(WORDS, {name: value.detach() for name, value in network.named_parameters()}))
    with create_pipe_input() as pipe:
        pipe.send_text(keys)
        return live, read_lines(live, input=pipe, output=DummyOutput())


def test_tab_takes_the_first_suggestion_and_f2_the_second():
    live, lines = typed(f"Th\tse\tis bl\t!\r{F2}\r\r")
    assert lines == ["The sea is blue !", live.complete("", 1)]


def test_a_suggestion_is_taken_at_the_cursor():
    assert typed(f"bl it{LEFT}{LEFT}{LEFT}\t\r{CTRL_D}")[1] == ["blue it"]


@pytest.mark.parametrize("key", [CTRL_D, CTRL_C, "\r"])
def test_the_end(key):
    assert typed(f"the\r{key}")[1] == ["the"]


# Learning

LINES = ["We need zorblax and zorblax; now", "more quibnor!"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("typed")
    (folder / "chat.jsonl").write_text('{"user": "ada", "text": "we need more time"}\n' * 10)
    data = DataSettings(source=str(folder / "chat.jsonl")).resolved()
    values = {**SMALL, "rounds": 1, "cohort": "all", "workers": 0}
    with prepare("oov_expansion", data.load(), folder=folder / "run", settings=values, data=data) as run:
        list(run.rounds())
    return str(folder / "run")


@pytest.fixture
def type_and_answer(trained, monkeypatch):
    """Type LINES, answer, and return what is said."""
    monkeypatch.setattr("homespun.cli.typing_editor.read_lines", lambda live: LINES)

    def typed(answer, *options):
        found = CliRunner().invoke(app, ["type", trained, *options], input=answer)
        assert found.exit_code == 0, found.output
        return found.output

    return typed


def rows(folder):
    with Vault.open(folder, read_only=True) as vault:
        return {user: vault.export(user) for user in vault.users()}, vault.artefacts()


@pytest.mark.parametrize("answer", ["\n", "none\n", " None\n", ""])  # "": Ctrl-D
def test_without_a_yes_nothing_is_learned(trained, type_and_answer, answer):
    before = rows(trained)
    said = type_and_answer(answer, "--user", "ada")
    assert "New words: zorblax (2), quibnor\nWhich of them become your own words" in said
    assert said.endswith("no word was learned\n") and rows(trained) == before


def test_a_new_user_is_not_asked(trained, type_and_answer):
    before = rows(trained)
    assert type_and_answer("all\n") == "" and rows(trained) == before


def test_the_words_that_are_chosen_are_learned_and_named(trained, type_and_answer):
    said = type_and_answer("quibnor zorblaks\nQuibnor\n", "--user", "ada")
    assert "Error: not among the new words: zorblaks" in said and said.count("Which of them") == 2
    assert f"added quibnor; `homespun words {trained} --user ada` lists and removes own words" in said
    assert "New words: zorblax (2)\n" in type_and_answer("none\n", "--user", "ada")  # quibnor is known now
    assert "added zorblax;" in type_and_answer("all\n", "--user", "ada")
    assert type_and_answer("", "--user", "ada") == ""  # nothing is left to ask


def test_what_an_answer_chooses():
    new = ["zorblax", "quibnor"]
    assert choose_words("ALL", new) == new and choose_words("none", new) == choose_words("", new) == []
    assert choose_words("Quibnor, zorblax", new) == ["quibnor", "zorblax"]
    with pytest.raises(click.UsageError, match="not among the new words: we, need"):
        choose_words("we zorblax need", new)
