"""Column names of a corpus, and which of them an error message may show."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass

from homespun.core.errors import nearest

SHOWN_COLUMNS = 12
LONGEST_NAME = 40


@dataclass(frozen=True)
class Columns:
    """Column names of a corpus.

    `user` and `text` are required. `context` and `label` are optional under their default names; under any other name
    they were asked for explicitly and are required too. `label` may name the same column as `context`.
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
    """Whether these look like column names rather than the first data row of a table without a header.

    Error messages must not show content, so the answer is no if in doubt. Empty names, as written by spreadsheets and
    data frames, are ignored.
    """
    return all(name.replace("-", "_").isidentifier() and len(name) <= LONGEST_NAME for name in names if name)


def missing_column(name: str, present: Sequence[str], *, show: bool) -> str:
    """The error message for a column that no record has. `show`: whether it may list the names that are present."""
    if not show:
        return (
            f"no column {name!r}, but {len(present)} whose names do not look like column names and are not shown. Is "
            "the header line missing? If not, name the columns: --user-column, --text-column."
        )
    shown = ", ".join(repr(column) for column in list(present)[:SHOWN_COLUMNS])
    more = ", ..." if len(present) > SHOWN_COLUMNS else ""
    return f"no column {name!r}.{nearest(name, present)} Columns: {shown}{more}."
