"""Commands for runs of a dialogue method: reply, chat and rerank."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homespun.cli.options import Folder, Json, Trust, print_json
from homespun.core.errors import InputError
from homespun.system.terminal import say

if TYPE_CHECKING:
    from homespun.personalization.replies import Replier, Reply, Search, Speaker

As = Annotated[
    str | None,
    typer.Option(
        "--as", help="Who replies: names of users or parts of them, separated by commas. Default: a new user."
    ),
]
Context = Annotated[
    str | None,
    typer.Option(help="A context of the corpus, or a part of its name. Default: the user's most frequent one."),
]
Beam = Annotated[int, typer.Option(help="Hypotheses that the search keeps.")]
Decode = Annotated[str, typer.Option(help="beam, greedy, sample or diverse.")]
Seed = Annotated[int, typer.Option(help="Random seed, with --decode sample.")]
Temperature = Annotated[float, typer.Option(help="Sampling temperature, with --decode sample.")]
Strength = Annotated[float, typer.Option(help="Above 1, personas are exaggerated: try 4.")]


def reply(
    folder: Folder,
    prompt: Annotated[str, typer.Argument(help="What to reply to.")],
    who: As = None,
    n: Annotated[int, typer.Option("-n", help="Number of replies to list.")] = 5,
    beam: Beam = 200,
    decode: Decode = "beam",
    temperature: Temperature = 1.0,
    persona_strength: Strength = 1.0,
    seed: Seed = 0,
    context: Context = None,
    trust: Trust = [],  # noqa: B006
    json_output: Json = False,
) -> None:
    """List the likeliest replies of a user to a text, with their scores.

    \b
    Scores are natural logarithms. With a reranker (`homespun rerank`), replies are
    ordered by log p(reply) + lambda log p(text | reply) + gamma words, and the
    column `before` is the place without it. With --persona-strength, log p(reply)
    is that of the exaggerated model.

    Example: homespun reply runs/fednlg-friends --as ross "What are you doing?"
    """
    from homespun.personalization.replies import find_replier
    from homespun.runs.training import reopen

    search = _search(beam=beam, decode=decode, temperature=temperature, persona_strength=persona_strength, seed=seed)
    with reopen(folder, trust=trust) as run:
        replier = find_replier(run, context=context)
        speakers = _speakers(replier, who)
        notes, lists = replier.read(prompt).notes, replier.reply_as(prompt, speakers, n=n, search=search)
    if json_output:
        print_json(_as_json(prompt, notes, speakers, lists))
        return
    for note in notes:
        say(f"note: {note}", to=sys.stderr)
    for number, (speaker, replies) in enumerate(zip(speakers, lists, strict=True)):
        if number:
            say("")
        _show_replies(speaker, replies)


def chat(
    folder: Folder,
    who: As = None,
    beam: Beam = 200,
    decode: Decode = "beam",
    temperature: Temperature = 1.0,
    persona_strength: Strength = 1.0,
    seed: Seed = 0,
    context: Context = None,
    trust: Trust = [],  # noqa: B006
) -> None:
    """Talk with a user's model in the terminal.

    \b
    The model replies to your last line; it does not remember earlier ones. Name
    several users to hear each of them. Ctrl-D or an empty line ends the chat.

    Example: homespun chat runs/fednlg-friends --as ross,rachel
    """
    from homespun.personalization.replies import find_replier
    from homespun.runs.training import reopen

    search = _search(beam=beam, decode=decode, temperature=temperature, persona_strength=persona_strength, seed=seed)
    with reopen(folder, trust=trust) as run:
        replier = find_replier(run, context=context)
        speakers = _speakers(replier, who)
        names = ", ".join(speaker.user or "a new user" for speaker in speakers)
        say(f"You are talking to {names}. Ctrl-D ends the chat.")
        if isinstance(sys.stdin, TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")
        while (line := _read_line()) is not None:
            _answer(replier, dict(zip(_short_names(speakers), speakers, strict=True)), line, search=search)
    say("Bye.")


def _read_line() -> str | None:
    """The next line; None at the end of input, at Ctrl-C, or for an empty line."""
    asks = sys.stdin.isatty()
    try:
        line = input("you> " if asks else "")
    except (EOFError, KeyboardInterrupt):
        if asks:
            say("")
        return None
    return line if line.strip() else None


def _answer(replier: Replier, speakers: Mapping[str, Speaker], line: str, *, search: Search) -> None:
    """Print the reply of each speaker, by short name, as soon as it is known."""
    try:
        for note in replier.read(line).notes:
            say(f"({note})", to=sys.stderr)
        for name, speaker in speakers.items():
            ((best, *_),) = replier.reply_as(line, [speaker], n=1, search=search)
            say(f"{name}> {best.text}")
    except InputError as error:  # for instance unknown words only
        say(f"({error})", to=sys.stderr)
    except KeyboardInterrupt:
        say("(stopped)")


def rerank(
    folder: Folder,
    inverse: Annotated[Path | None, typer.Option("--inverse", help="Folder of the inverse model.")] = None,
    federated: Annotated[
        bool, typer.Option("--federated", help="Tune on the clients' evaluation parts, from sums of BLEU counts.")
    ] = False,
    questions: Annotated[int, typer.Option(help="Number of pairs to tune on.")] = 500,
    beam: Beam = 200,
    off: Annotated[bool, typer.Option("--off", help="Remove the run's reranker.")] = False,
    trust: Trust = [],  # noqa: B006
    json_output: Json = False,
) -> None:
    """Tune a reranker of replies with an inverse model, and keep it in the run.

    \b
    Chooses lambda and gamma by Minimum Error Rate Training on BLEU: on held-out
    pairs of the base model's public data or, with --federated, on sums of BLEU
    counts that clients compute on their evaluation parts. If it is interrupted,
    run the same command again to resume.

    Example: homespun rerank runs/fednlg-friends --inverse runs/seq2seq-inverse/model
    """
    from homespun.cli.console import Reporter
    from homespun.personalization.reranker_tuning import tune_reranker
    from homespun.personalization.reranking import ARTEFACT
    from homespun.runs.training import reopen

    if off == (inverse is not None):
        raise InputError("give either --inverse FOLDER to tune a reranker, or --off to remove it")
    if questions < 1:
        raise InputError(f"--questions: {questions}. Tune on at least one pair.")
    with (
        Reporter(to_stderr=json_output) as reporter,
        reopen(folder, trust=trust, read_only=False, progress=reporter.show_progress) as run,
    ):
        if inverse is None:
            run.vault.drop_artefact(ARTEFACT)
            say(f"{folder}: reranker removed", to=sys.stderr)
            return
        tuned = tune_reranker(run, str(inverse.resolve()), federated=federated, questions=questions, beam=beam)
    if json_output:
        print_json(tuned.to_dict())
        return
    say(f"lambda {tuned.lam:.3f}, gamma {tuned.gamma:.3f}: BLEU {100 * (tuned.bleu or 0):.2f} on {tuned.tuned_on}")


def _search(**values: Any) -> Search:
    from homespun.core.settings import parse
    from homespun.personalization.replies import Search as Found

    return parse(Found, values, where="search")


def _speakers(replier: Replier, who: str | None) -> list[Speaker]:
    from homespun.personalization.user import resolve_typed_user

    if replier.reranker_is_outdated:
        outdated = "the run was trained further after its reranker was tuned. Tune it again: `homespun rerank`"
        say(f"warning: {outdated}", to=sys.stderr)
    names: list[str | None] = [None]
    if who is not None and not who.strip(" ,"):
        raise InputError("--as: no name given")
    if who is not None:
        whole = resolve_typed_user(replier.run, who) in replier.run.federation.users  # a name may have a comma
        names = [who] if whole else [name.strip() for name in who.split(",") if name.strip()]
    found = (replier.speaker(None if name is None else resolve_typed_user(replier.run, name)) for name in names)
    speakers = list({speaker.user: speaker for speaker in found}.values())  # each once
    for speaker in speakers:
        if not speaker.personalized:
            say(f"warning: no private parameters of {speaker.user!r}; using those of a new user", to=sys.stderr)
    return speakers


def _short_names(speakers: list[Speaker]) -> list[str]:
    """First names, or whole names where first names are blank or not different."""
    whole = [speaker.user or "new user" for speaker in speakers]
    if whole == ["new user"]:
        return whole
    first = [next(iter(name.split("/")[-1].split()), "").lower() for name in whole]
    readable = all(name.isalpha() for name in first)
    return first if readable and len(set(first)) == len(first) else whole


def _show_replies(speaker: Speaker, replies: list[Reply]) -> None:
    from homespun.cli.console import out, table

    reranked = any(one.log_prob_of_prompt is not None for one in replies)
    header = ("reply", "log p", "words", *(("log p(text)", "score", "before") if reranked else ()))
    rows = []
    for one in replies:
        more = (f"{one.log_prob_of_prompt:.2f}", f"{one.score:.2f}", str(one.rank)) if reranked else ()
        rows.append((one.text, f"{one.log_prob:.2f}", str(one.words), *more))
    out.print(table(speaker.user or "a new user", header, rows))


def _as_json(prompt: str, notes: list[str], speakers: list[Speaker], lists: list[list[Reply]]) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "notes": notes,
        "replies": [
            {
                "user": speaker.user,
                "own": speaker.personalized,
                "list": [
                    {
                        "text": one.text,
                        "log_prob": one.log_prob,
                        "words": one.words,
                        "log_prob_of_prompt": one.log_prob_of_prompt,
                        "score": one.score,
                        "rank": one.rank,
                    }
                    for one in replies
                ],
            }
            for speaker, replies in zip(speakers, lists, strict=True)
        ],
    }
