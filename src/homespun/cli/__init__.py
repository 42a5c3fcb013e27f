"""The command `homespun`. Commands are thin: each calls functions that are also available from Python.

Exit codes: 0 success; 2 invalid input; 130 interrupted by Ctrl-C; 1 any other error.
Commands import what they need when they are called, so that `homespun --help` does not import torch.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from io import StringIO, TextIOWrapper
from typing import Annotated, Any

import click
import typer

from homespun import __version__
from homespun.cli import dialogue, language, settings, suggestions, training, typing_editor, users
from homespun.cli.corpora import data_app
from homespun.cli.pretrain import pretrain_app
from homespun.cli.privacy import privacy_app
from homespun.core.errors import HomespunError
from homespun.system.terminal import say

app = typer.Typer(
    help="Personalized federated learning with private parameters that are never uploaded.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (training.train, training.compare, training.demo, training.evaluate, users.personalize, users.predict,
                language.generate, dialogue.reply, dialogue.chat, dialogue.rerank, suggestions.suggest,
                suggestions.words, language.export, training.report, training.check, training.bench,
                settings.settings):  # fmt: skip
    app.command()(command)
app.command("type")(typing_editor.type_lines)


def _version(asked: bool) -> None:
    if asked:
        say(f"homespun {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.add_typer(data_app, name="data")
app.add_typer(pretrain_app, name="pretrain")
app.add_typer(users.vault_app, name="vault")
app.add_typer(privacy_app, name="privacy")


def _format_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> str:
    """Format a warning like an error, without its line of code."""
    return f"{category.__name__}: {message}\n"


def main() -> None:
    warnings.formatwarning = _format_warning
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the cores belong to the workers
    for stream in (sys.stdout, sys.stderr):  # escape what the terminal cannot encode
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(standalone_mode=False) or 0  # a command returns nothing; Ctrl-C comes back as 130
    except click.ClickException as error:
        error.show(file=(shown := StringIO()))
        say(shown.getvalue().rstrip("\n"), to=sys.stderr)
        code = 2
    except HomespunError as error:
        say(f"{type(error).__name__}: {error}", to=sys.stderr)
        code = error.exit_code
    except OSError as error:
        say(f"{type(error).__name__}: {error}", to=sys.stderr)
        code = 2
    except click.Abort:
        code = 130
    except Exception:
        say(traceback.format_exc().rstrip("\n"), to=sys.stderr)
        code = 1
    if code == 130:
        say("\nInterrupted. Committed work is kept. Run the same command again to resume.", to=sys.stderr)
    sys.exit(code)
