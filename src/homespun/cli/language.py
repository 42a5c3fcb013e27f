"""Commands for runs of a language method: generate and export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homespun.cli.options import Folder, Json, Trust, print_json
from homespun.core.errors import InputError
from homespun.system.terminal import say

if TYPE_CHECKING:
    from homespun.runs.run import Run

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
    output: Annotated[Path, typer.Option("--output", "-o", help="New folder for the model.")],
    user: User = None,
    context: Context = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also write ONNX files of a reply model, for phones and browsers.")
    ] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="Store the ONNX weights as 8-bit integers: smaller, less exact.")
    ] = False,
    trust: Trust = [],  # noqa: B006
) -> None:
    """Export a user's model: a PEFT adapter, a reply model or a next-word model.

    \b
    A language method: the user's prefix for a context as a PEFT prompt-tuning
    adapter, which works with the base model in any program that supports PEFT.
    A dialogue method: the shared parameters, the user's persona, the vocabulary
    and a card that shows how to use them. With --onnx (extra onnx) also
    encoder.onnx and decoder_step.onnx, with which onnxruntime alone can search
    for replies.
    A next-word method: next_word_step.onnx, which reads a word and scores the
    next one, with the user's own words (extra onnx).
    All are made from private parameters: keep them private.

    Example: homespun export runs/fedperc-sotu --user kennedy --context written --output kennedy

    Example: homespun export runs/fednlg-friends --user ross --output ross --onnx --int8

    Example: homespun export runs/oov_expansion-chat --user ada --output ada --int8
    """
    from homespun.personalization.adapter import export_adapter
    from homespun.personalization.replies import find_reply_base
    from homespun.personalization.user import resolve_typed_user
    from homespun.runs.training import reopen

    with reopen(folder, trust=trust) as run:
        name = None if user is None else resolve_typed_user(run, user)
        if find_reply_base(run) is not None:
            _export_replies(run, output, user=name, context=context, onnx=onnx, int8=int8)
            return
        if "suggest" in run.scoring.offers:
            _export_next_words(run, output, user=name, context=context, int8=int8)
            return
        if onnx or int8:
            raise InputError(
                f"--onnx and --int8 are for runs of a dialogue or next-word method, and this is a run of "
                f"{run.method.name}. Leave them out."
            )
        model = export_adapter(run, output, user=name, context=context)
    _warn_if_not_personalized(model)
    say(f"{output}: {model.user or 'a new user'}{f', {model.context}' if model.context else ''}")


def _export_replies(run: Run, output: Path, *, user: str | None, context: str | None, onnx: bool, int8: bool) -> None:
    from homespun.personalization.reply_export import export_reply_model

    if context is not None:
        raise InputError("--context: a reply model has no contexts. Leave it out.")
    if int8 and not onnx:
        raise InputError("--int8: it applies to ONNX files only. Add --onnx.")
    _show_files(export_reply_model(run, output, user=user, onnx=onnx, int8=int8))


def _export_next_words(run: Run, output: Path, *, user: str | None, context: str | None, int8: bool) -> None:
    from homespun.personalization.next_word_export import export_next_word_model

    if context is not None:
        raise InputError("--context: a next-word model has no contexts. Leave it out.")
    exported = export_next_word_model(run, output, user=user, int8=int8)
    _show_files(exported)
    median, high = exported.step_ms
    say(f"  {exported.own_words:,} own words; a word is read in {median:.2f} ms, 95 % in {high:.2f} ms, on one core")


def _show_files(exported: Any) -> None:
    _warn_if_not_personalized(exported)
    private = "; it contains private parameters: keep it private" if exported.private else ""
    say(f"{exported.folder}: {exported.user or 'a new user'}{private}")
    for name, size in exported.file_bytes.items():
        say(f"  {name:<18} {size / 1e6:8.2f} MB")


def _warn_if_not_personalized(model: Any) -> None:
    """A user without private parameters (never sampled, or forgotten) has the model of a new user."""
    if model.user is not None and not model.personalized:
        say(f"warning: no private parameters of {model.user!r}; using those of a new user", to=sys.stderr)
