"""A line editor with live suggestions, `homespun type`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from homespun.cli.options import Folder, Trust
from homespun.core.errors import InputError
from homespun.system.terminal import say

if TYPE_CHECKING:
    from homespun.personalization.live_text import LiveText

ALL, NONE = "all", "none"  # answers to the question which words to learn
EXTRA = "pip install 'homespun[typing]'"


def type_lines(
    folder: Folder,
    user: Annotated[str | None, typer.Option(help="Name of the user, or a part of it. Default: a new user.")] = None,
    trust: Trust = [],  # noqa: B006
) -> None:
    """Type with live suggestions.

    \b
    Three suggestions are below the line. Tab takes the first, F1 to F3 take one of
    them. Ctrl-D or an empty line ends. New words are suggested from the next line
    on; at the end you are asked which of them become your own words. Nothing else
    of what you typed is kept, and nothing is uploaded.

    Example: homespun type runs/oov_expansion-chat --user ada
    """
    from homespun.personalization.live_text import LiveText, new_words
    from homespun.personalization.own_words import add_words, has_lexicon, typed_until_own
    from homespun.personalization.suggestions import find_suggester
    from homespun.runs.training import reopen

    with reopen(folder, trust=trust) as run:
        suggester = find_suggester(run, user)
        learn_after = typed_until_own(run) if has_lexicon(run) else 0
    lines = read_lines(LiveText(suggester, learn_after=learn_after))
    found = [(word, count) for word, count in new_words(lines, suggester).most_common() if count >= learn_after]
    if not found or not learn_after or user is None:
        return
    listed = ", ".join(f"{word} ({count})" if count > 1 else word for word, count in found)
    say(f"New words: {listed}")
    new = [word for word, _ in found]
    try:
        chosen = typer.prompt(
            "Which of them become your own words: all, none, or some, separated by spaces?",
            default=NONE,
            value_proc=lambda answer: choose_words(answer, new),
        )
    except typer.Abort:  # Ctrl-C or Ctrl-D
        chosen = []
        say("")
    if not chosen:
        say("no word was learned")
        return
    with reopen(folder, read_only=False, trust=trust) as run:
        added = add_words(run, user, chosen)
    say(f"added {', '.join(added)}; `homespun words {Path(folder)} --user {user}` lists and removes own words")


def choose_words(answer: str, new: Sequence[str]) -> list[str]:
    """The words that an answer chooses; if it has others, the question is asked again."""
    if answer.strip().lower() in (ALL, NONE):
        return list(new) if answer.strip().lower() == ALL else []
    chosen = answer.replace(",", " ").lower().split()
    others = [word for word in chosen if word not in new]
    if others:
        raise click.UsageError(f"not among the new words: {', '.join(others)}")
    return chosen


def read_lines(live: LiveText, **terminal: Any) -> list[str]:
    """The lines typed until Ctrl-D, Ctrl-C or an empty line. `terminal` has the input and output of a test."""
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.key_binding import KeyBindings
        from prompt_toolkit.key_binding.key_processor import KeyPressEvent
    except ImportError as error:
        raise InputError(f"the line editor needs the extra typing. Install it with `{EXTRA}`.") from error

    keys = KeyBindings()

    def take(place: int) -> Any:
        def taken(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            after = buffer.document.text_after_cursor
            before = live.complete(buffer.document.text_before_cursor, place)
            before = before.rstrip() if after.startswith(" ") else before
            buffer.text = before + after
            buffer.cursor_position = len(before)

        return taken

    for key, place in (("tab", 0), ("f1", 0), ("f2", 1), ("f3", 2)):
        keys.add(key)(take(place))
    session: PromptSession[str] = PromptSession(key_bindings=keys, **terminal)

    def toolbar() -> str:
        found = live.suggestions(session.default_buffer.document.text_before_cursor)
        return "   ".join(f"F{n} {one.word}{'*' if one.own else ''}" for n, one in enumerate(found, start=1)) or " "

    while True:
        try:
            line = session.prompt("> ", bottom_toolbar=toolbar)
        except (EOFError, KeyboardInterrupt):
            return live.lines
        if not line.strip():
            return live.lines
        live.enter(line)
