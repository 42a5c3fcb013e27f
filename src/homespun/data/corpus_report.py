"""A report on the contents of a corpus, to read before training."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from homespun.core.seeds import numpy_generator
from homespun.data.federation import Examples, Federation
from homespun.data.splits import FRACTIONS, Fractions, SplitBy, part_sizes, select_part
from homespun.data.table import LeftOut

INSPECTED_AT_MOST = 20_000  # users; a larger population is sampled
QUANTILES = {"min": 0.0, "10%": 0.1, "median": 0.5, "90%": 0.9, "max": 1.0}
USABLE = "Users without a usable example (one with a text that is not blank) are left out."
FEW = "A user with fewer than {enough} examples trains on all of them and is not evaluated (split: {fractions})."
BY_CONVERSATION = "All examples of a conversation are in the same part. A user may have none in a part."
OWN_PARTS = "The corpus itself assigns examples to training, evaluation and test."
LENGTHS = (40, 100, 280, 1000)  # characters
_OF_TEXT = ("longest_text", "characters", "distinct_characters", "longer_than")


@dataclass(frozen=True)
class CorpusReport:
    """Statistics of a corpus.

    When `sampled`, all but `users`, `labels` and `contexts` describe the `inspected_users` only, and `examples` is
    their mean times the number of users.
    """

    name: str
    fingerprint: str
    users: int
    inspected_users: int
    sampled: bool
    examples: int
    labels: int
    contexts: int
    examples_per_user: dict[str, float]  # quantiles, and the mean
    users_with_one_example: int
    fractions: Fractions  # for training, evaluation and test
    users_without_evaluation: int  # with too few examples to hold any out
    users_with_several_contexts: int
    left_out_users: dict[str, int]  # by reason
    left_out_examples: dict[str, int]
    majority_label_share: float | None  # share of the most frequent label among all examples
    own_majority_share: float | None  # share of each user's most frequent label, mean over users
    longest_text: int  # in characters; 0 for images
    characters: int
    distinct_characters: int
    longer_than: dict[str, float]  # share of texts with more characters than the key
    split_by: SplitBy = "example"
    has_parts: bool = False  # the corpus itself assigns examples to training, evaluation and test

    @property
    def policy(self) -> list[str]:
        enough = next((count for count in range(1, 1000) if part_sizes(count, self.fractions)[1]), "1,000")
        few = FEW.format(enough=enough, fractions=", ".join(f"{share:g}" for share in self.fractions))
        few = BY_CONVERSATION if self.split_by == "conversation" else few
        few = OWN_PARTS if self.has_parts else few
        return [USABLE, few] if self.characters else [few]

    def to_dict(self) -> dict[str, Any]:
        found = {**asdict(self), "policy": self.policy}
        if self.split_by == "example":
            found.pop("split_by")
        if not self.characters:
            found = {name: value for name, value in found.items() if name not in _OF_TEXT}
        return found


def inspect_corpus(
    federation: Federation,
    *,
    fractions: Fractions = FRACTIONS,
    split_by: SplitBy = "example",
    seed: int = 0,
    inspect_at_most: int = INSPECTED_AT_MOST,
) -> CorpusReport:
    """Inspect the examples of all users, or of a sample if there are more than `inspect_at_most`. `seed` matters for
    splits by conversation only."""
    users = len(federation.users)
    sampled = users > inspect_at_most
    positions = _sample(users, inspect_at_most) if sampled else range(users)
    tally = _Tally(len(federation.labels))
    evaluated = select_part(federation, "eval", seed=seed, fractions=fractions, split_by=split_by)
    unevaluated = 0
    for user in positions:
        tally.add(federation.examples(int(user)))
        if split_by != "conversation":
            unevaluated += part_sizes(tally.counts[-1], fractions)[1] == 0
        else:
            unevaluated += not len(evaluated.examples(int(user)))
    counts = np.array(tally.counts)
    left_out = getattr(federation, "left_out", LeftOut())
    labelled = int(tally.labels.sum())
    return CorpusReport(
        name=federation.name,
        fingerprint=federation.fingerprint,
        users=users,
        inspected_users=len(counts),
        sampled=sampled,
        examples=round(counts.mean() * users) if sampled else int(counts.sum()),
        labels=len(federation.labels),
        contexts=len(federation.contexts),
        examples_per_user=quantiles_and_mean(counts),
        users_with_one_example=int((counts == 1).sum()),
        fractions=fractions,
        users_without_evaluation=unevaluated,
        users_with_several_contexts=tally.several_contexts,
        left_out_users=dict(left_out.users),
        left_out_examples=dict(left_out.examples),
        majority_label_share=float(tally.labels.max() / labelled) if labelled else None,
        own_majority_share=float(np.mean(tally.own_shares)) if tally.own_shares else None,
        longest_text=max(tally.sizes, default=0),
        characters=tally.letters.total(),
        distinct_characters=len(tally.letters),
        longer_than={
            str(length): sum(many for size, many in tally.sizes.items() if size > length) / counts.sum()
            for length in LENGTHS
        },
        split_by=split_by,
        has_parts=tally.has_parts,
    )


def quantiles_and_mean(counts: np.ndarray) -> dict[str, float]:
    return {**{name: float(np.quantile(counts, at)) for name, at in QUANTILES.items()}, "mean": float(counts.mean())}


def _sample(users: int, size: int) -> np.ndarray:
    generator = numpy_generator(0, "check")
    return np.sort(generator.choice(users, size=size, replace=False, shuffle=False))


class _Tally:
    def __init__(self, labels: int) -> None:
        self.labels = np.zeros(labels, dtype=np.int64)
        self.counts: list[int] = []
        self.own_shares: list[float] = []
        self.several_contexts = 0
        self.has_parts = False
        self.letters: Counter[str] = Counter()
        self.sizes: Counter[int] = Counter()  # texts by their length

    def add(self, examples: Examples) -> None:
        self.counts.append(len(examples))
        self.has_parts |= examples.parts is not None
        self.letters.update("".join(examples.texts))
        self.sizes.update(map(len, examples.texts))
        if examples.contexts is not None:
            self.several_contexts += len(np.unique(examples.contexts)) > 1
        if examples.labels is not None and len(examples):
            own = np.bincount(examples.labels, minlength=len(self.labels))
            self.labels += own
            self.own_shares.append(float(own.max() / len(examples)))
