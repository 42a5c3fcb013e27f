"""Commands for corpora: data show, check, settings and voices."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homespun.cli.options import (
    ContextColumn,
    ConversationColumn,
    DataSet,
    Json,
    LabelColumn,
    ProfileColumn,
    TextColumn,
    UserColumn,
    data_settings_from,
    print_json,
)
from homespun.cli.settings import show_settings
from homespun.core.errors import SettingsError
from homespun.core.settings import parse_overrides
from homespun.system.terminal import say

if TYPE_CHECKING:
    from homespun.data.profiles import Profiles

data_app = typer.Typer(help="Inspect a corpus, or create the corpus of synthetic speech.", no_args_is_help=True)


@data_app.command("show")
def data_show(
    source: Annotated[str, typer.Argument(help="File, folder or built-in corpus.")],
    users: Annotated[int, typer.Option(help="Number of users to show.")] = 3,
    examples: Annotated[int, typer.Option(help="Number of examples per user.")] = 3,
    data_settings: DataSet = [],  # noqa: B006
    user_column: UserColumn = None,
    context_column: ContextColumn = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    conversation_column: ConversationColumn = None,
    profile_column: ProfileColumn = None,
) -> None:
    """Show some users of a corpus and some of their examples.

    Example: homespun data show dialects --users 2
    """
    federation = data_settings_from(
        source,
        data_settings,
        user=user_column,
        context=context_column,
        text=text_column,
        label=label_column,
        conversation=conversation_column,
        profile=profile_column,
    ).load()
    counts = f"{len(federation.labels)} labels, {len(federation.contexts)} contexts"
    profiles: Profiles | None = getattr(federation, "profiles", None)
    say(f"{federation.name}: {len(federation.users):,} users, {counts}")
    for position in range(min(users, len(federation.users))):
        some = federation.examples(position)
        group = federation.group(position)
        notes = [f"{len(some)} examples", *([group] if group else [])]
        if profiles is not None:
            profile = profiles.named(profiles.number_of[position])
            notes += [f"{name} {value or 'unknown'}" for name, value in profile.items()]
        say(f"\n{federation.users[position]} ({', '.join(notes)})")
        for row in range(min(examples, len(some))):
            notes = []
            if some.contexts is not None:
                notes.append(federation.contexts[int(some.contexts[row])])
            if some.labels is not None:
                notes.append(f"-> {federation.labels[int(some.labels[row])]}")
            shown = some.texts[row][:60] if some.images is None else "{} x {} image".format(*some.images.shape[1:])
            say(f"  {shown}  {' '.join(notes)}")


@data_app.command("check")
def data_check(
    source: Annotated[str, typer.Argument(help="File, folder or built-in corpus.")],
    data_settings: DataSet = [],  # noqa: B006
    user_column: UserColumn = None,
    context_column: ContextColumn = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    conversation_column: ConversationColumn = None,
    profile_column: ProfileColumn = None,
    method: Annotated[str | None, typer.Option(help="Also count the texts that this method truncates.")] = None,
    settings: Annotated[
        list[str], typer.Option("--set", "-s", metavar="NAME=VALUE", help="Setting of that method.")
    ] = [],  # noqa: B006
    json_output: Json = False,
) -> None:
    """Check that a corpus can be read, and summarize it.

    Example: homespun data check posts.jsonl.gz --label-column context --method furl --set length=100
    """
    from homespun.data.corpus_report import inspect_corpus
    from homespun.data.dialogue_report import inspect_dialogue
    from homespun.data.profiles import inspect_profiles
    from homespun.data.table import TableFederation

    if settings and method is None:
        raise SettingsError("--set needs --method.")

    federation = data_settings_from(
        source,
        data_settings,
        user=user_column,
        context=context_column,
        text=text_column,
        label=label_column,
        conversation=conversation_column,
        profile=profile_column,
    ).load()
    found = inspect_corpus(federation).to_dict()
    dialogue = inspect_dialogue(federation) if isinstance(federation, TableFederation) else None
    profile = inspect_profiles(federation)
    cut = None if method is None else _cut(method, settings, federation)
    if json_output:
        more: dict[str, Any] = {} if dialogue is None else {"dialogue": dialogue.to_dict()}
        more |= {"profile": {name: asdict(one) for name, one in profile.items()}} if profile else {}
        print_json({**found, **more} if method is None else {**found, **more, "cut": cut and asdict(cut)})
        return
    found |= {} if dialogue is None else dialogue.to_dict()
    found |= {f"profile: {name}": str(one) for name, one in profile.items()}
    if method is not None:
        found = {**found, f"truncated by {method}": str(cut) if cut else "none: it has no length limit"}
    for name, value in found.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key}: {item}" for key, item in value.items()) or "none"
        if isinstance(value, list):
            value = " ".join(value)
        say(f"{name.replace('_', ' '):28} {value}")


@data_app.command("settings")
def data_settings(
    source: Annotated[str, typer.Argument(help="File, folder or built-in corpus.")], json_output: Json = False
) -> None:
    """List the settings of a corpus.

    Example: homespun data settings dialects
    """
    from homespun.cli.catalogue import corpus_settings

    title = f"Corpus {source}: --data-set NAME=VALUE"
    show_settings(corpus_settings(source), {"corpus": title}, about={"corpus": source}, json_output=json_output)


def _cut(method: str, settings: list[str], federation: Any) -> Any:
    """The number of texts that the method truncates; None if it has no length limit."""
    from homespun.data.corpus_report import INSPECTED_AT_MOST
    from homespun.data.dialogue import as_read
    from homespun.data.truncation import measure_truncation
    from homespun.runs.open_run import task_of
    from homespun.runs.training import separate_settings
    from homespun.system.method_loading import load_method

    _, own = separate_settings(method, parse_overrides(settings))
    model = load_method(method, own, task_of(federation)).model
    read, texts = as_read(federation, model.reads), 10 * INSPECTED_AT_MOST
    return model.window and measure_truncation(read, model.window, users=INSPECTED_AT_MOST, texts=texts)


@data_app.command("voices")
def data_voices(
    folder: Annotated[Path, typer.Argument(help="Folder of the corpus.")] = Path("runs/voices"),
    utterances: Annotated[
        int | None, typer.Option(help="Number of utterances. Default: 12,420, as in the paper.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    json_output: Json = False,
) -> None:
    """Create the corpus "voices": spectrograms of sentences in twenty synthetic voices.

    \b
    This takes some minutes and needs no network, but an optional dependency:
    pip install homespun[voices]. If it is interrupted, run the same command again
    to resume. For a finished corpus, the command verifies every byte.

    Example: homespun data voices runs/voices
    """
    from homespun.cli.console import counting, err, out
    from homespun.core.settings import parse
    from homespun.data.spectrogram_set import SpectrogramRequest, make_set, plan_set, summarize_set

    given = {} if utterances is None else {"utterances": utterances}
    planned = plan_set(parse(SpectrogramRequest, {**given, "seed": seed}, where="voices"))
    with counting(err if json_output else out, "voices", total=planned.request.utterances) as show:
        for done in make_set(folder, planned):
            show(done)
    found = summarize_set(folder)
    if json_output:
        print_json(found)
        return
    out.print(
        f"{folder}: {found['utterances']:,} utterances of {found['voices']} voices, {found['training']:,} for training "
        f"and {found['testing']:,} for testing, {found['bytes'] / 1e6:,.0f} MB"
    )
