"""Options that several commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from homespun.core.settings import parse_overrides

Folder = Annotated[Path, typer.Argument(help="Folder of the run.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and progress on stderr.")]
Trust = Annotated[
    list[str],
    typer.Option(help="Allow a method file (.py) or Hugging Face model that the run folder refers to."),
]
Set = Annotated[
    list[str], typer.Option("--set", "-s", metavar="NAME=VALUE", help="Setting; see `homespun settings METHOD`.")
]
Data = Annotated[
    str, typer.Option("--data", "-d", help="File, folder or built-in corpus: dialects, digits, sotu, voices.")
]
DataSet = Annotated[
    list[str],
    typer.Option("--data-set", metavar="NAME=VALUE", help="Corpus setting; see `homespun data settings CORPUS`."),
]
UserColumn = Annotated[str | None, typer.Option(help="Column of the user.")]
ContextColumn = Annotated[str | None, typer.Option(help="Column of the context.")]
TextColumn = Annotated[str | None, typer.Option(help="Column of the text.")]
LabelColumn = Annotated[str | None, typer.Option(help="Column of the label.")]
ConversationColumn = Annotated[
    str | None, typer.Option(help="Columns that name a conversation, separated by commas: season,episode,scene.")
]
ProfileColumn = Annotated[
    str | None, typer.Option(help="Columns that say something about the user, separated by commas: gender,age.")
]


def data_settings_from(source: str, settings: list[str], **columns: str | None) -> Any:
    from homespun.data.source import DataSettings

    named = {name: column for name, column in columns.items() if column is not None}
    return DataSettings.model_validate(
        {"source": source, "columns": named, "settings": parse_overrides(settings)}
    ).resolved()


def print_json(content: Mapping[str, Any]) -> None:
    from homespun.system.json_files import without_nan

    sys.stdout.write(json.dumps(without_nan(content)) + "\n")
