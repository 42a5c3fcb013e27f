"""The line editor, driven through a real key parser."""

import pytest
import torch

pytest.importorskip("prompt_toolkit")
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from homespun.cli.typing_editor import read_lines
from homespun.models.next_word import NextWord
from homespun.models.suggester import Suggester
from homespun.models.vocabulary import Vocabulary
from homespun.personalization.live_text import LiveText

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
