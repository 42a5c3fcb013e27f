"""The only module that prints. User names and texts may contain terminal escape sequences, which are escaped here, in
lines, tables and progress bars alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from homespun.core.escaping import escape_unprintable


def say(text: object, *, to: TextIO | None = None) -> None:
    """Print a line, to stdout unless another stream is named."""
    print(escape_unprintable(str(text)), file=to, flush=True)


class Terminal(Console):
    """A console that lets only its own escape sequences reach the terminal."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Escape text before it is measured, so that tables fit."""
        return super().render_str(escape_unprintable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape everything else that is shown, such as a progress bar's title."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escape_unprintable(segment.text))
