"""The command that lists the settings of a method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from homespun.cli.options import Json, print_json
from homespun.system.terminal import say

if TYPE_CHECKING:
    from homespun.cli.catalogue import Groups

WIDEST = 100  # longer lines are hard to read


def settings(
    method: Annotated[str, typer.Argument(help="Method (furl, fedperc, ...) or a .py file with one.")],
    json_output: Json = False,
) -> None:
    """List the settings of a method, of its runs and of differential privacy.

    \b
    Each entry has the default, the allowed values, the value of the method's
    paper if it states one, and the meaning.

    Example: homespun settings fedperc
    """
    from homespun.cli.catalogue import method_settings

    groups = method_settings(method)
    titles = {
        "method": f"Method {method}: homespun train {method} --set NAME=VALUE",
        "run": "Run: --set NAME=VALUE",
        "privacy": "Differential privacy: --set privacy.NAME=VALUE",
    }
    show_settings(groups, titles, about={"method": method}, json_output=json_output)


def show_settings(groups: Groups, titles: dict[str, str], *, about: dict[str, str], json_output: bool) -> None:
    from homespun.cli.catalogue import text_lines, to_json
    from homespun.cli.console import out

    if json_output:
        print_json({**about, "settings": to_json(groups)})
        return
    for place, (name, some) in enumerate(groups.items()):
        if place:
            say("")
        say(titles[name])
        for line in text_lines(some, width=min(out.width, WIDEST) - 2):
            say(f"  {line}")
