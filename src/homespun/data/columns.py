"""What the columns of a corpus are called, and which names a message may show."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass

from homespun.core.errors import nearest

SHOWN_COLUMNS = 12
LONGEST_NAME = 40


@dataclass(frozen=True)
class Columns:
    """What the columns of a corpus are called.

    `user` and `text` must be there. `context` and `label` may be absent under their default names; under
    any other name they were asked for and must be there too. `label` may be the context's column.
    """

    user: str = "user"
    context: str = "context"
    text: str = "text"
    label: str = "label"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(asdict(self).values()))

    @property
    def required(self) -> tuple[str, ...]:
        optional = (self.context, "context"), (self.label, "label")
        asked = [name for name, default in optional if name != default]
        return tuple(dict.fromkeys([self.user, self.text, *asked]))


def look_like_names(names: Collection[str]) -> bool:
    """Whether these are column names, as far as one can tell, and not the first line of a table without a header.

    A message shows no content, so the answer is no if in doubt. A column without a name, as spreadsheets and data
    frames write, says nothing either way.
    """
    return all(name.replace("-", "_").isidentifier() and len(name) <= LONGEST_NAME for name in names if name)


def missing_column(name: str, present: Sequence[str], *, show: bool) -> str:
    """What to say when no record has a column; `show` says whether the names that are there may be shown."""
    if not show:
        return (
            f"no column {name!r}, but {len(present)} whose names do not look like names and are not shown. Is the "
            "header line missing? If it is there, name the columns: --user-column, --text-column."
        )
    shown = ", ".join(repr(column) for column in list(present)[:SHOWN_COLUMNS])
    more = ", ..." if len(present) > SHOWN_COLUMNS else ""
    return f"no column {name!r}.{nearest(name, present)} Columns: {shown}{more}."
