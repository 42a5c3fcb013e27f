"""A corpus as dialogue: replies, each with the prompt it answers.

A prompt and its reply are two consecutive turns of one conversation by different speakers. The speaker of the reply
owns the pair: it is an example of theirs, with the reply as its text. The prompt may come from a user whom filters
leave out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from homespun.core.errors import DataError
from homespun.core.words import words
from homespun.data.columns import name_conversations
from homespun.data.federation import Examples, Federation, concatenate
from homespun.data.profiles import Profiles
from homespun.data.splits import original
from homespun.data.table import LeftOut, TableFederation, describe_left_out
from homespun.data.user_names import ListedNames


def as_read(federation: Federation, reads: str) -> Federation:
    """The corpus as a method reads it: with `reads` = "replies" its replies, else the corpus itself."""
    return replies(federation) if reads == "replies" else federation


def replies(federation: Federation) -> TableFederation:
    """The replies of a corpus, with their prompts. Users without any are left out.

    The corpus's filters were applied to its texts, before this. `max_words` is applied here.
    """
    corpus = original(federation)
    every = [_with_prompts(federation, user) for user in range(len(federation.users))]
    max_words: int | None = getattr(corpus, "max_words", None)
    kept = [each.take(_short_enough(each, max_words)) for each in every]
    counts = np.array([len(each) for each in kept])
    owners = np.flatnonzero(counts)
    left_out = _left_out(federation, [every, kept], max_words=max_words)
    if not len(owners):
        raise DataError(
            f"{federation.name}: no user has a reply, a turn that follows another speaker's in the same conversation. "
            f"{describe_left_out(left_out)}. {name_conversations(getattr(corpus, 'columns', ()))}"
        )
    pooled = concatenate([kept[owner] for owner in owners])
    profiles: Profiles | None = getattr(federation, "profiles", None)
    assert pooled.prompts is not None
    return TableFederation(
        name=federation.name,
        fingerprint=_fingerprint(federation, pooled, max_words),
        users=ListedNames(federation.users[int(owner)] for owner in owners),
        labels=federation.labels,
        contexts=federation.contexts,
        texts=tuple(pooled.texts),
        starts=np.concatenate([[0], np.cumsum(counts[owners])]),
        label_of=pooled.labels,
        context_of=pooled.contexts,
        prompts=tuple(pooled.prompts),
        conversation_of=pooled.conversations,
        profiles=None if profiles is None else profiles.take(owners),
        max_words=max_words,
        columns=getattr(corpus, "columns", ()),
        left_out=left_out,
        place=getattr(corpus, "place", None),
        content=getattr(corpus, "content", None),
        looks_across=getattr(corpus, "looks_across", ()),
        loaded_by=getattr(federation, "loaded_by", None),
    )


def _with_prompts(federation: Federation, user: int) -> Examples:
    """The examples of one user that have a prompt."""
    examples = federation.examples(user)
    if examples.prompts is None:
        remedy = name_conversations(getattr(original(federation), "columns", ()))
        raise DataError(f"{federation.name}: the corpus has no conversations, so it has no replies. {remedy}")
    return examples.take([row for row, prompt in enumerate(examples.prompts) if prompt is not None])


def _short_enough(examples: Examples, max_words: int | None) -> np.ndarray:
    """The rows of which neither the prompt nor the text has more words."""
    if max_words is None:
        return np.arange(len(examples))
    pairs = zip(examples.texts, examples.prompts or (), strict=True)
    return np.array(
        [row for row, pair in enumerate(pairs) if all(len(words(side or "")) <= max_words for side in pair)],
        dtype=np.int64,
    )


def _left_out(federation: Federation, stages: Sequence[Sequence[Examples]], *, max_words: int | None) -> LeftOut:
    """What the corpus left out, and then the examples without a prompt or with too many words and their users."""
    before: LeftOut = getattr(federation, "left_out", LeftOut())
    with_prompt, kept = ([len(each) for each in stage] for stage in stages)
    texts = sum(len(federation.examples(user)) for user in range(len(federation.users)))
    without = with_prompt.count(0)
    users = {"no reply": without, f"no reply of at most {max_words} words": kept.count(0) - without}
    examples = {
        "no prompt": texts - sum(with_prompt),
        f"more than {max_words} words in the prompt or the reply": sum(with_prompt) - sum(kept),
    }
    return LeftOut(
        users={**before.users, **{reason: count for reason, count in users.items() if count}},
        examples={**before.examples, **{reason: count for reason, count in examples.items() if count}},
    )


def _fingerprint(federation: Federation, pooled: Examples, max_words: int | None) -> str:
    assert pooled.conversations is not None
    pairs = [federation.fingerprint, "replies", max_words, list(pooled.prompts or ()), pooled.conversations.tolist()]
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
