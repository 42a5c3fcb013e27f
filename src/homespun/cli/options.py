"""Options that several commands share, and what they mean."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from homespun.core.settings import parse_overrides

Folder = Annotated[Path, typer.Argument(help="The run's folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout; progress goes to stderr.")]
Trust = Annotated[
    list[str],
    typer.Option(
        help="A method file (.py), or a name on the Hugging Face hub, that the folder names and that may be used."
    ),
]
Set = Annotated[
    list[str], typer.Option("--set", "-s", help="A setting: name=value. `homespun settings METHOD` lists them.")
]
Data = Annotated[str, typer.Option("--data", "-d", help="A file, or built in: dialects, digits, sotu, voices.")]
DataSet = Annotated[
    list[str],
    typer.Option("--data-set", help="A setting of the corpus: name=value. `homespun data settings CORPUS` lists them."),
]
UserColumn = Annotated[str | None, typer.Option(help="Column with the user's id.")]
ContextColumn = Annotated[str | None, typer.Option(help="Column with the context.")]
TextColumn = Annotated[str | None, typer.Option(help="Column with the text.")]
LabelColumn = Annotated[str | None, typer.Option(help="Column with the label.")]


def data_settings_from(source: str, settings: list[str], **columns: str | None) -> Any:
    from homespun.data.source import DataSettings

    named = {name: column for name, column in columns.items() if column is not None}
    return DataSettings.model_validate(
        {"source": source, "columns": named, "settings": parse_overrides(settings)}
    ).resolved()


def print_json(content: Mapping[str, Any]) -> None:
    from homespun.system.json_files import without_nan

    sys.stdout.write(json.dumps(without_nan(content)) + "\n")
