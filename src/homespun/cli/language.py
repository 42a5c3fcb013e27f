"""Commands for runs of a language method: generate and export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from homespun.cli.options import Folder, Json, Trust, print_json
from homespun.system.terminal import say

User = Annotated[str | None, typer.Option(help="Name of the user, or a part of it. Default: a new user.")]
Context = Annotated[
    str | None, typer.Option(help="Name of the context, or a part of it. Required if the run has several.")
]


def generate(
    folder: Folder,
    prompt: Annotated[str, typer.Argument(help="Text to continue.")] = "",
    user: User = None,
    context: Context = None,
    samples: Annotated[int, typer.Option("--samples", "-n", help="Number of continuations.")] = 1,
    max_tokens: Annotated[int, typer.Option(help="Maximum number of tokens to generate.")] = 40,
    temperature: Annotated[float, typer.Option(help="Sampling temperature. 0 is the same as --greedy.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Sample from the likeliest tokens with this total probability.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from the k likeliest tokens. 0: from all.")] = 0,
    seed: Annotated[int, typer.Option(help="Random seed. The same seed gives the same text.")] = 0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always choose the likeliest token.")] = False,
    until: Annotated[
        str, typer.Option(help="Stop at the end of the sentence (sentence) or of the text (end).")
    ] = "sentence",
    trust: Trust = [],  # noqa: B006
    json_output: Json = False,
) -> None:
    """Generate text as a user would write it in a context.

    \b
    Nothing is uploaded, and the run does not change.

    Example: homespun generate runs/fedperc-sotu --user kennedy --context written "We must"
    """
    from homespun.core.settings import parse
    from homespun.personalization.generation import Sampling, find_personal_model, sample_continuations
    from homespun.personalization.user import resolve_typed_user
    from homespun.runs.training import reopen

    values: dict[str, Any] = {
        "samples": samples, "max_tokens": max_tokens, "temperature": 0.0 if greedy else temperature, "top_p": top_p,
        "top_k": top_k, "seed": seed, "until": until,
    }  # fmt: skip
    sampling = parse(Sampling, values, where="generate")
    with reopen(folder, trust=trust) as run:
        model = find_personal_model(run, user=None if user is None else resolve_typed_user(run, user), context=context)
        texts = [prompt + text for text in sample_continuations(model, prompt, sampling)]
    if json_output:
        found = {
            "user": model.user,
            "own": model.personalized,
            "context": model.context,
            "prompt": prompt,
            "texts": texts,
        }
        print_json({**found, **values})
        return
    _warn_if_not_personalized(model)
    for text in texts:
        say(text)


def export(
    folder: Folder,
    output: Annotated[Path, typer.Option("--output", "-o", help="New folder for the adapter.")],
    user: User = None,
    context: Context = None,
    trust: Trust = [],  # noqa: B006
) -> None:
    """Export a user's prefix for a context as a PEFT prompt-tuning adapter.

    \b
    The adapter works with the base model in any program that supports PEFT. It is
    made from private parameters: keep it private.

    Example: homespun export runs/fedperc-sotu --user kennedy --context written --output kennedy
    """
    from homespun.personalization.adapter import export_adapter
    from homespun.personalization.user import resolve_typed_user
    from homespun.runs.training import reopen

    with reopen(folder, trust=trust) as run:
        model = export_adapter(
            run, output, user=None if user is None else resolve_typed_user(run, user), context=context
        )
    _warn_if_not_personalized(model)
    say(f"{output}: {model.user or 'a new user'}{f', {model.context}' if model.context else ''}")


def _warn_if_not_personalized(model: Any) -> None:
    """A user without private parameters (never sampled, or forgotten) has the model of a new user."""
    if model.user is not None and not model.personalized:
        say(f"warning: no private parameters of {model.user!r}; using those of a new user", to=sys.stderr)
