"""Commands for runs of a next-word method: suggest and words."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from homespun.cli.options import Folder, Json, Trust, print_json
from homespun.core.errors import InputError
from homespun.system.terminal import say


def suggest(
    folder: Folder,
    text: Annotated[str, typer.Argument(help="What is typed already.")],
    user: Annotated[str | None, typer.Option(help="Name of the user, or a part of it. Default: a new user.")] = None,
    prefix: Annotated[str, typer.Option(help="Beginning of the word that is being typed.")] = "",
    k: Annotated[int, typer.Option("-k", help="Number of suggestions.")] = 3,
    trust: Trust = [],  # noqa: B006
    json_output: Json = False,
) -> None:
    """Suggest the word that follows a text.

    \b
    Each suggestion has its probability among the words that begin with --prefix;
    a star marks the user's own words.

    Example: homespun suggest runs/oov_expansion-chat --user ada "we should meet at the"
    """
    from homespun.personalization.suggestions import suggest as found_for
    from homespun.runs.training import reopen

    with reopen(folder, trust=trust) as run:
        found = found_for(run, text, user=user, prefix=prefix, k=k)
    if json_output:
        print_json({"text": text, "prefix": prefix, "suggestions": [one._asdict() for one in found]})
        return
    if not found:
        say("no word that is known begins with this")
    for one in found:
        say(f"{100 * one.probability:5.1f} %  {one.word}{' *' if one.own else ''}")


def words(
    folder: Folder,
    user: Annotated[str, typer.Option(help="Name of the user, or a part of it.")],
    add: Annotated[list[str], typer.Option("--add", metavar="WORD", help="Add a word.")] = [],  # noqa: B006
    forget: Annotated[
        list[str], typer.Option("--forget", metavar="WORD", help="Remove a word, also from the files.")
    ] = [],  # noqa: B006
    export: Annotated[Path | None, typer.Option(help="Write the words to a new text file.")] = None,
    trust: Trust = [],  # noqa: B006
    json_output: Json = False,
) -> None:
    """List, add, remove or export a user's own words.

    \b
    Own words are those that the shared vocabulary does not have. They are learned
    from the user's texts in personalization, stay in the run's vault, and are
    never uploaded.

    Example: homespun words runs/oov_expansion-chat --user ada --forget zorblax
    """
    from homespun.personalization.own_words import add_words, forget_words, own_words
    from homespun.runs.training import reopen
    from homespun.system.disk import write_whole

    with reopen(folder, read_only=not (add or forget), trust=trust) as run:
        for word in add_words(run, user, add) if add else ():
            say(f"added {word}")
        for word in forget_words(run, user, forget) if forget else ():
            say(f"removed {word}")
        found = own_words(run, user)
    if export is not None:
        if os.path.lexists(export):
            raise InputError(f"{export}: already exists. Choose another path.")
        say(write_whole(export, "".join(f"{one.word}\n" for one in found), mode=0o600))
    elif json_output:
        listed = [{"word": one.word, "count": one.count, "since": one.since and one.since.isoformat()} for one in found]
        print_json({"user": user, "words": listed})
    elif not (add or forget):
        for one in found:
            typed = "added by hand" if not one.count else f"typed {one.count} time{'s' * (one.count > 1)}"
            say(f"{one.word}  {typed}, known since {one.since or 'training'}")
        if not found:
            say("no own words")
