"""Commands that look at a corpus before training on it."""

from __future__ import annotations

from typing import Annotated

import typer

from homespun.cli.options import (
    ContextColumn,
    DataSet,
    Json,
    LabelColumn,
    TextColumn,
    UserColumn,
    data_settings_from,
    print_json,
)

data_app = typer.Typer(help="Look at a corpus before training on it.", no_args_is_help=True)


@data_app.command("show")
def data_show(
    source: Annotated[str, typer.Argument(help="A built-in corpus or a file.")],
    users: Annotated[int, typer.Option(help="How many users to show.")] = 3,
    examples: Annotated[int, typer.Option(help="How many examples of each.")] = 3,
    data_settings: DataSet = [],  # noqa: B006
    user_column: UserColumn = None,
    context_column: ContextColumn = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
) -> None:
    """Some users and some of their examples.

    Example: homespun data show dialects --users 2
    """
    federation = data_settings_from(
        source, data_settings, user=user_column, context=context_column, text=text_column, label=label_column
    ).load()
    counts = f"{len(federation.labels)} labels, {len(federation.contexts)} contexts"
    print(f"{federation.name}: {len(federation.users):,} users, {counts}")
    for position in range(min(users, len(federation.users))):
        some = federation.examples(position)
        group = federation.group(position)
        print(f"\n{federation.users[position]} ({len(some)} examples{f', {group}' if group else ''})")
        for row in range(min(examples, len(some))):
            notes = []
            if some.contexts is not None:
                notes.append(federation.contexts[int(some.contexts[row])])
            if some.labels is not None:
                notes.append(f"-> {federation.labels[int(some.labels[row])]}")
            shown = some.texts[row][:60] if some.images is None else "{} x {} image".format(*some.images[row].shape)
            print(f"  {shown}  {' '.join(notes)}")


@data_app.command("check")
def data_check(
    source: Annotated[str, typer.Argument(help="A built-in corpus or a file.")],
    data_settings: DataSet = [],  # noqa: B006
    user_column: UserColumn = None,
    context_column: ContextColumn = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    json_output: Json = False,
) -> None:
    """Whether a corpus can be read, and what is in it.

    Example: homespun data check posts.jsonl.gz --label-column context
    """
    from homespun.data.check import check as check_corpus

    federation = data_settings_from(
        source, data_settings, user=user_column, context=context_column, text=text_column, label=label_column
    ).load()
    found = check_corpus(federation).to_dict()
    if json_output:
        print_json(found)
        return
    for name, value in found.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key}: {item}" for key, item in value.items()) or "none"
        if isinstance(value, list):
            value = " ".join(value)
        print(f"{name.replace('_', ' '):28} {value}")
