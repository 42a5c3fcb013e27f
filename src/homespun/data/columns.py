"""Column names of a corpus, and which of them an error message may show."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass

from homespun.core.errors import nearest

SHOWN_COLUMNS = 12
LONGEST_NAME = 40
# Columns that name a conversation if none is chosen: the first one alone, else all others that the corpus has, provided
# that one of DECIDING is among them.
CONVERSATION = "conversation"
TOGETHER = ("context", "season", "episode", "scene", "thread", "topic")
DECIDING = frozenset({"episode", "scene", "thread", "topic"})


@dataclass(frozen=True)
class Columns:
    """Column names of a corpus.

    `user` and `text` are required. `context` and `label` are optional under their default names; under any other name
    they were asked for explicitly and are required too. `label` may name the same column as `context`.

    `conversation` names the columns, separated by commas, that together name a conversation ("season,episode,scene").
    Empty: the column `conversation` if the corpus has one; else those of context, season, episode, scene, thread and
    topic that it has, if an episode, scene, thread or topic is among them; else there are no conversations.

    `profile` names the columns, separated by commas, that say something about the user ("gender,age").
    """

    user: str = "user"
    context: str = "context"
    text: str = "text"
    label: str = "label"
    conversation: str = ""
    profile: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of which each example must have a value, or none."""
        return tuple(dict.fromkeys([self.user, self.context, self.text, self.label]))

    @property
    def conversation_columns(self) -> tuple[str, ...]:
        """The columns chosen to name a conversation; none in automatic mode."""
        return _separate(self.conversation)

    @property
    def profile_columns(self) -> tuple[str, ...]:
        """The columns of the user's profile."""
        return _separate(self.profile)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The columns that are read if they are present. One that cannot be read is a fault."""
        return tuple(dict.fromkeys([*self.names, *self.conversation_columns, *self.profile_columns]))

    @property
    def automatic(self) -> tuple[str, ...]:
        """Further columns that are read if they are present and can be read."""
        found = () if self.conversation_columns else (CONVERSATION, *TOGETHER)
        return tuple(name for name in found if name not in self.chosen)

    @property
    def required(self) -> tuple[str, ...]:
        optional = (self.context, "context"), (self.label, "label")
        asked = [name for name, default in optional if name != default]
        return tuple(dict.fromkeys([self.user, self.text, *asked, *self.conversation_columns, *self.profile_columns]))

    def identity(self) -> dict[str, str]:
        """What a fingerprint covers. Columns that were added later are left out while none is chosen."""
        added_later = ("conversation", "profile")
        return {name: value for name, value in asdict(self).items() if value or name not in added_later}


def _separate(names: str) -> tuple[str, ...]:
    """The names in a list with commas, each once."""
    return tuple(dict.fromkeys(name for part in names.split(",") if (name := part.strip())))


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
    return f"no column {name!r}.{nearest(name, present)} Columns: {_listed(present)}."


def name_conversations(present: Sequence[str]) -> str:
    """The remedy for a corpus without conversations. `present`: its columns, if they may be shown."""
    shown = f" Columns: {_listed(present)}." if present else ""
    return f"Name the columns of the conversation: --conversation-column scene, or season,episode,scene.{shown}"


def _listed(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > SHOWN_COLUMNS else ""
    return ", ".join(repr(name) for name in list(names)[:SHOWN_COLUMNS]) + more
