"""Commands that use what a language method learned: a person's voice in a setting."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from homespun.cli.options import Folder, Json, Trust, print_json
from homespun.system.terminal import say

User = Annotated[str | None, typer.Option(help="Whose voice: a name or a part of one. Left out: a new user's.")]
Context = Annotated[str | None, typer.Option(help="The setting: a name or a part of one, if there are several.")]


def generate(
    folder: Folder,
    opening: Annotated[str, typer.Argument(help="The text to continue; may be empty.")] = "",
    user: User = None,
    context: Context = None,
    samples: Annotated[int, typer.Option("--samples", "-n", help="How many continuations.")] = 1,
    max_tokens: Annotated[int, typer.Option(help="Tokens to add, at most.")] = 40,
    temperature: Annotated[float, typer.Option(help="Below 1: more likely words; above: less. 0 is --greedy.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Only the likeliest tokens that have this share together.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Only so many of the likeliest tokens; 0: all.")] = 0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same texts.")] = 0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always the likeliest token.")] = False,
    until: Annotated[
        str, typer.Option(help="Stop at the end of the: sentence, or only at the end of the text: end.")
    ] = "sentence",
    trust: Trust = [],  # noqa: B006
    json_output: Json = False,
) -> None:
    """Continue a text in a person's voice and a setting. Nothing is uploaded.

    Example: homespun generate runs/fedperc-sotu --user kennedy --context written "We must"
    """
    from homespun.core.settings import parse
    from homespun.personalization.generation import Sampling, continuations, find_voice
    from homespun.personalization.user import typed_user
    from homespun.runs.training import reopen

    values: dict[str, Any] = {
        "samples": samples, "max_tokens": max_tokens, "temperature": 0.0 if greedy else temperature, "top_p": top_p,
        "top_k": top_k, "seed": seed, "until": until,
    }  # fmt: skip
    sampling = parse(Sampling, values, where="generate")
    with reopen(folder, trust=trust) as run:
        voice = find_voice(run, user=None if user is None else typed_user(run, user), context=context)
        texts = [opening + text for text in continuations(voice, opening, sampling)]
    if json_output:
        found = {"user": voice.user, "own": voice.own, "context": voice.context, "opening": opening, "texts": texts}
        print_json({**found, **values})
        return
    _warn_of_nobody(voice)
    for text in texts:
        say(text)


def export(
    folder: Folder,
    output: Annotated[Path, typer.Option("--output", "-o", help="A folder that does not exist yet.")],
    user: User = None,
    context: Context = None,
    trust: Trust = [],  # noqa: B006
) -> None:
    """Write a person's voice in a setting as a PEFT prompt-tuning adapter.

    Its owner can then use it wherever the base model is. It is made from private parameters: keep it as such.

    Example: homespun export runs/fedperc-sotu --user kennedy --context written --output kennedy
    """
    from homespun.personalization.adapter import export_adapter
    from homespun.personalization.user import typed_user
    from homespun.runs.training import reopen

    with reopen(folder, trust=trust) as run:
        voice = export_adapter(run, output, user=None if user is None else typed_user(run, user), context=context)
    _warn_of_nobody(voice)
    say(f"{output}: {voice.user or 'a new user'}{f', {voice.context}' if voice.context else ''}")


def _warn_of_nobody(voice: Any) -> None:
    """A person of whom nothing is kept (never drawn for a round, or forgotten) speaks as somebody new does."""
    if voice.user is not None and not voice.own:
        say(f"nothing is kept of {voice.user!r}: this is a new user's voice", to=sys.stderr)
