"""A federation held in memory, grouped by user."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from pydantic import Field

from homespun.core.errors import DataError
from homespun.core.settings import Settings
from homespun.data.content_signature import ContentSignature, sign_content
from homespun.data.conversations import ConversationIndex, opening_turns, previous_turns
from homespun.data.federation import Examples, short_repr
from homespun.data.profiles import ProfileIndex, Profiles
from homespun.data.user_names import ListedNames


class Filters(Settings):
    """The examples and users of a corpus that take part. Filters apply in this order, `max_words` when a method reads
    replies."""

    most_frequent_labels: int | None = Field(default=None, ge=1)
    """Keep only examples with one of the k most frequent labels. Not set: all."""
    min_context_examples: int | None = Field(default=None, ge=1)
    """Leave out contexts with fewer examples."""
    min_examples: int | None = Field(default=None, ge=1)
    """Leave out users with fewer examples."""
    max_examples: int | None = Field(default=None, ge=1)
    """Leave out users with more examples."""
    max_users: int | None = Field(default=None, ge=1)
    """Keep at most this many of the remaining users, the first ones in the file."""
    max_words: int | None = Field(default=None, ge=1)
    """Methods that read replies: leave out pairs in which the prompt or the reply has more words."""

    @property
    def looks_across(self) -> tuple[str, ...]:
        """Names of the active filters that count examples across users."""
        counting = ("most_frequent_labels", "min_context_examples")
        return tuple(name for name in counting if getattr(self, name) is not None)


@dataclass(frozen=True)
class LeftOut:
    """The number of users and examples that were left out, by reason."""

    users: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class TableFederation:
    """Users in order of first appearance, each with their examples in the source's order."""

    name: str
    fingerprint: str
    users: ListedNames
    labels: tuple[str, ...]
    contexts: tuple[str, ...]
    texts: tuple[str, ...] = field(repr=False)  # grouped by user
    starts: np.ndarray = field(repr=False)  # start of each user's texts, and the end of the last
    label_of: np.ndarray | None = field(repr=False, default=None)
    context_of: np.ndarray | None = field(repr=False, default=None)
    # Of a corpus with conversations: the text that each text replies to, if any, and the conversation it belongs to,
    # numbered before filters, or -1
    prompts: tuple[str | None, ...] | None = field(repr=False, default=None)
    conversation_of: np.ndarray | None = field(repr=False, default=None)
    opens: np.ndarray | None = field(repr=False, default=None)  # whether it is the first text of its conversation
    profiles: Profiles | None = field(repr=False, default=None)
    max_words: int | None = None  # of prompts and replies
    columns: tuple[str, ...] = ()  # of the source, if error messages may show them
    left_out: LeftOut = LeftOut()
    place: Path | None = None  # the file it was read from
    content: ContentSignature | None = None  # of the source, before filters
    looks_across: tuple[str, ...] = ()  # filters by which one user's examples affect which others are kept
    loaded_by: Any = field(default=None, compare=False)  # the settings it was loaded with, if `homespun.load` did it

    __repr__ = short_repr

    def examples(self, user: int) -> Examples:
        if not 0 <= user < len(self.users):
            raise IndexError(f"no user {user} among {len(self.users)}")
        mine = slice(int(self.starts[user]), int(self.starts[user + 1]))
        texts = self.texts[mine]
        profile = None if self.profiles is None else self.profiles.number_of[user]
        return Examples(
            texts=texts,
            labels=None if self.label_of is None else self.label_of[mine],
            contexts=None if self.context_of is None else self.context_of[mine],
            prompts=None if self.prompts is None else self.prompts[mine],
            conversations=None if self.conversation_of is None else self.conversation_of[mine],
            authors=np.full(len(texts), user, dtype=np.int64),
            profiles=None if profile is None else np.tile(profile, (len(texts), 1)),
        )

    def group(self, user: int) -> str | None:
        return None


class NameIndex:
    """Assigns indices to names in order of first appearance."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}

    def encode(self, name: str) -> int:
        return self.index.setdefault(name, len(self.index))


class Collector:
    """Collects examples for a table. A blank text registers its user but adds no example."""

    def __init__(
        self, conversation_index: ConversationIndex | None = None, profile_index: ProfileIndex | None = None
    ) -> None:
        self.conversation_index = conversation_index
        self.profile_index = profile_index or ProfileIndex(())
        self.columns: tuple[str, ...] = ()
        self.users, self.labels, self.contexts = NameIndex(), NameIndex(), NameIndex()
        self.texts: list[str] = []
        self.rows = array("q")  # user, label and context of each example; -1 if absent
        self.blank = 0

    def add(
        self,
        user: str,
        text: str,
        *,
        label: str | None,
        context: str | None,
        values: Mapping[str, Any] = MappingProxyType({}),
        profile: Sequence[str | None] = (),
    ) -> None:
        """Add an example. `values`: all cells of its row, among which are those that name its conversation. `profile`:
        the cells of the user's profile."""
        author = self.users.encode(user)
        if profile:
            self.profile_index.add(author, profile)
        if not text.strip():
            self.blank += 1
            return
        self.texts.append(text)
        self.rows.extend(
            (
                author,
                -1 if label is None else self.labels.encode(label),
                -1 if context is None else self.contexts.encode(context),
            )
        )
        if self.conversation_index is not None:
            self.conversation_index.add(values)

    def note_columns(self, names: tuple[str, ...]) -> None:
        """The columns of the source, if error messages may show them."""
        self.columns = names

    def conversations(self) -> np.ndarray | None:
        """The number of each example's conversation, or -1; None if the corpus has no conversations."""
        return None if self.conversation_index is None else self.conversation_index.resolve()


def build_table(collected: Collector, *, name: str, fingerprint: str, filters: Filters) -> TableFederation:
    """The filtered table, with examples grouped by user and names of labels and contexts sorted."""
    if not collected.users.index:
        raise DataError(f"{name}: the corpus is empty. At least one example is needed.")
    rows = np.frombuffer(collected.rows, dtype=np.int64).reshape(-1, 3)
    user_of, label_of, context_of = rows.T
    labelled_rows = _rows_with_frequent_labels(label_of, list(collected.labels.index), filters)
    kept_rows = _rows_in_frequent_contexts(labelled_rows, context_of, filters)
    kept_users, left_out_users = _kept_users(
        np.bincount(user_of[kept_rows], minlength=len(collected.users.index)), filters
    )
    left_out = LeftOut(
        users=left_out_users,
        examples=_nonzero(
            {
                "blank text": collected.blank,
                "a rarer label": len(rows) - len(labelled_rows),
                f"a context of fewer than {filters.min_context_examples}": len(labelled_rows) - len(kept_rows),
            }
        ),
    )
    if not len(kept_users):
        raise DataError(f"{name}: no user is left. {describe_left_out(left_out)}. Loosen the filters or add examples.")
    position = np.full(len(collected.users.index), -1)
    position[kept_users] = np.arange(len(kept_users))
    kept_rows = kept_rows[position[user_of[kept_rows]] >= 0]
    kept_rows = kept_rows[np.argsort(position[user_of[kept_rows]], kind="stable")]
    labels, label_index = _sorted_names(list(collected.labels.index), label_of[kept_rows])
    contexts, context_index = _sorted_names(list(collected.contexts.index), context_of[kept_rows])
    names = list(collected.users.index)
    counts = np.bincount(position[user_of[kept_rows]], minlength=len(kept_users))
    conversation_of = collected.conversations()
    return TableFederation(
        name=name,
        fingerprint=fingerprint,
        users=ListedNames(names[user] for user in kept_users),
        labels=labels,
        contexts=contexts,
        texts=tuple(collected.texts[row] for row in kept_rows),
        starts=np.concatenate([[0], np.cumsum(counts)]),
        label_of=label_index,
        context_of=context_index,
        prompts=_prompts(collected.texts, conversation_of, user_of=user_of, rows=kept_rows),
        conversation_of=None if conversation_of is None else conversation_of[kept_rows],
        opens=None if conversation_of is None else opening_turns(conversation_of)[kept_rows],
        profiles=collected.profile_index.resolve(kept_users.tolist()),
        max_words=filters.max_words,
        columns=collected.columns,
        left_out=left_out,
        content=sign_content((names[user], text) for user, text in zip(user_of.tolist(), collected.texts, strict=True)),
        looks_across=filters.looks_across,
    )


def _prompts(
    texts: Sequence[str], conversation_of: np.ndarray | None, *, user_of: np.ndarray, rows: np.ndarray
) -> tuple[str | None, ...] | None:
    """The text that each of these rows replies to. It may be in a row that filters leave out."""
    if conversation_of is None:
        return None
    before = previous_turns(conversation_of, user_of)[rows]
    return tuple(None if row < 0 else texts[row] for row in before.tolist())


def describe_left_out(left_out: LeftOut) -> str:
    """`Left out: 3 users with fewer than 5 examples, 1 example with blank text`."""
    kinds = {"user": left_out.users, "example": left_out.examples}
    parts = [
        f"{count:,} {kind}{'' if count == 1 else 's'} with {reason}"
        for kind, reasons in kinds.items()
        for reason, count in reasons.items()
    ]
    return "Left out: " + (", ".join(parts) or "nothing")


def _rows_with_frequent_labels(label_of: np.ndarray, names: list[str], filters: Filters) -> np.ndarray:
    if filters.most_frequent_labels is None:
        return np.arange(len(label_of))
    counts = np.bincount(label_of[label_of >= 0], minlength=len(names))
    # ties are broken by name
    ranked = sorted(range(len(names)), key=lambda label: (-counts[label], names[label]))
    return np.flatnonzero(np.isin(label_of, ranked[: filters.most_frequent_labels]))


def _rows_in_frequent_contexts(rows: np.ndarray, context_of: np.ndarray, filters: Filters) -> np.ndarray:
    """The rows whose context has at least `min_context_examples` rows."""
    if filters.min_context_examples is None:
        return rows
    _, context, counts = np.unique(context_of[rows], return_inverse=True, return_counts=True)
    return rows[counts[context] >= filters.min_context_examples]


def _kept_users(counts: np.ndarray, filters: Filters) -> tuple[np.ndarray, Mapping[str, int]]:
    fewest, most = filters.min_examples or 1, filters.max_examples
    none, few = counts == 0, (counts > 0) & (counts < fewest)
    many = np.zeros_like(none) if most is None else counts > most
    kept = np.flatnonzero(~(none | few | many))
    beyond = 0 if filters.max_users is None else max(0, len(kept) - filters.max_users)
    reasons = {
        "no usable example": int(none.sum()),
        f"fewer than {fewest} examples": int(few.sum()),
        f"more than {most} examples": int(many.sum()),
        f"a place beyond the first {filters.max_users}": beyond,
    }
    return kept[: filters.max_users], _nonzero(reasons)


def _sorted_names(names: list[str], index: np.ndarray) -> tuple[tuple[str, ...], np.ndarray | None]:
    """The sorted names that occur, and the column re-indexed to them; `((), None)` if the column is absent."""
    present = np.unique(index)
    if not len(present) or present[0] < 0:
        return (), None
    order = sorted(present.tolist(), key=lambda value: names[value])
    renumbered = np.full(len(names), -1)
    renumbered[order] = np.arange(len(order))
    return tuple(names[value] for value in order), renumbered[index]


def _nonzero(counts: Mapping[str, int]) -> Mapping[str, int]:
    return {reason: count for reason, count in counts.items() if count}
