"""A report on the conversations and replies of a corpus, for `homespun data check`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from homespun.core.errors import DataError
from homespun.data.corpus_report import quantiles_and_mean
from homespun.data.dialogue import replies
from homespun.data.federation import Examples, Federation
from homespun.data.splits import FRACTIONS, Fractions, SplitBy, split
from homespun.data.table import TableFederation

MOST_FREQUENT = 10  # speakers that are listed
DIGITS = 4  # of a share


@dataclass(frozen=True)
class DialogueReport:
    """Statistics of the replies in a corpus, of users that its filters keep.

    Texts are the same if they differ only in case and white space.
    """

    conversations: int
    turns: int
    turns_without_prompt: dict[str, int]  # by reason
    pairs: int  # of a prompt and its reply
    pairs_beyond_max_words: int | None  # None: max_words is not set. All below is without them
    speakers: int = 0  # who reply
    pairs_per_speaker: dict[str, float] = field(default_factory=dict)  # quantiles, and the mean
    most_pairs: dict[str, int] = field(default_factory=dict)  # by speaker
    # Replies whose text occurs more than once: their number and share
    repeated_replies: dict[str, float] = field(default_factory=dict)
    # Shares of the test part whose reply, and whose prompt and reply, also occur in the training part
    test_seen_by_example: dict[str, float | None] = field(default_factory=dict)
    test_seen_by_conversation: dict[str, float | None] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        found = asdict(self)
        if self.pairs_beyond_max_words is None:
            found.pop("pairs_beyond_max_words")
        return found


def inspect_dialogue(
    federation: TableFederation, *, seed: int = 0, fractions: Fractions = FRACTIONS
) -> DialogueReport | None:
    """Inspect the replies of a corpus; None if it has no conversations."""
    if federation.prompts is None or federation.conversation_of is None or federation.opens is None:
        return None
    conversation_of = federation.conversation_of
    replied = np.array([prompt is not None for prompt in federation.prompts])
    alone = conversation_of < 0
    try:
        of_replies = _inspect_replies(replies(federation), seed=seed, fractions=fractions)
    except DataError:  # no user has a reply, so that the corpus is one of texts
        of_replies = {}
    kept = sum(of_replies.pop("counts", []))
    return DialogueReport(
        conversations=len(np.unique(conversation_of[~alone])),
        turns=len(federation.texts),
        turns_without_prompt={
            "no conversation": int(alone.sum()),
            "first of the conversation": int(federation.opens.sum()),
            "same speaker as before": int((~alone & ~federation.opens & ~replied).sum()),
        },
        pairs=int(replied.sum()),
        pairs_beyond_max_words=None if federation.max_words is None else int(replied.sum()) - kept,
        **of_replies,
    )


def _inspect_replies(view: TableFederation, *, seed: int, fractions: Fractions) -> dict[str, Any]:
    counts = np.diff(view.starts)
    order = np.argsort(-counts, kind="stable")[:MOST_FREQUENT]
    texts = Counter(map(_same, view.texts))
    repeated = sum(count for count in texts.values() if count > 1)
    return {
        "counts": counts.tolist(),
        "speakers": len(view.users),
        "pairs_per_speaker": quantiles_and_mean(counts),
        "most_pairs": {view.users[int(user)]: int(counts[user]) for user in order},
        "repeated_replies": {"count": repeated, "share": round(repeated / len(view.texts), DIGITS)},
        "test_seen_by_example": _test_in_training(view, "example", seed=seed, fractions=fractions),
        "test_seen_by_conversation": _test_in_training(view, "conversation", seed=seed, fractions=fractions),
    }


def _test_in_training(
    view: Federation, split_by: SplitBy, *, seed: int, fractions: Fractions
) -> dict[str, float | None]:
    """Shares of the test part of all users that occur in the training part of any user; None if there is no test."""
    training: set[tuple[str, str]] = set()
    test: list[tuple[str, str]] = []
    for user, name in enumerate(view.users):
        parts = split(view.examples(user), seed=seed, user=name, fractions=fractions, split_by=split_by)
        training.update(_pairs(parts.train))
        test.extend(_pairs(parts.test))
    answers = {reply for _, reply in training}
    found = {
        "reply": sum(reply in answers for _, reply in test),
        "prompt and reply": sum(pair in training for pair in test),
    }
    return {name: round(count / len(test), DIGITS) if test else None for name, count in found.items()}


def _pairs(examples: Examples) -> Iterable[tuple[str, str]]:
    prompts = map(_same, (prompt or "" for prompt in examples.prompts or ()))
    return zip(prompts, map(_same, examples.texts), strict=True)


def _same(text: str) -> str:
    """Equal for texts that differ only in case and white space."""
    return " ".join(text.lower().split())
