"""Users with conflicting preferences: each likes one kind of image and none of the others.

The FedEmbed paper builds users from a labelled collection in this way (Silva et al., 2022, section 4). Half of the
examples of a user of sub-population k are of kind k and labelled `liked`; the other half are of other kinds and
labelled `not liked`. The kind of an example is its context.

Users are not stored: their examples are computed from pools of images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from homespun.core.errors import DataError, SettingsError
from homespun.core.seeds import numpy_generator
from homespun.core.settings import Paper, Settings
from homespun.data.federation import Examples, Images, short_repr
from homespun.data.user_names import NumberedNames

LABELS = ("not liked", "liked")
TRAIN, EVAL, TEST = range(3)


class Population(Settings):
    """The users, and how many examples each of them has."""

    users: Annotated[PositiveInt, Paper("9000 (MNIST)")] = 300
    """Users; each likes one kind of image."""
    balance: Literal["balanced", "imbalanced"] = "balanced"
    """Whether sub-populations have equal sizes, or the paper's unequal sizes."""
    train: Annotated[PositiveInt, Paper(20)] = 20
    """Training examples per user; half of them are liked."""
    validation: Annotated[NonNegativeInt, Paper(0)] = 4
    """Evaluation examples per user; drawn from the training pool and never trained on."""
    test: Annotated[PositiveInt, Paper(10)] = 10
    """Test examples per user; half of them are liked."""
    overlap: Annotated[bool, Paper(True)] = False
    """Whether test examples are also drawn from the training pool, so that other users may train on them."""
    seed: NonNegativeInt = 0
    """Random seed of the users and their examples."""


@dataclass(frozen=True)
class Pool:
    """Images and the kind of each."""

    images: np.ndarray = field(repr=False)  # uint8 [images, height, width]
    kinds: np.ndarray = field(repr=False)  # int64 [images]

    @cached_property
    def of_kind(self) -> list[np.ndarray]:
        return [np.flatnonzero(self.kinds == kind) for kind in range(int(self.kinds.max()) + 1)]

    @cached_property
    def of_others(self) -> list[np.ndarray]:
        return [np.flatnonzero(self.kinds != kind) for kind in range(len(self.of_kind))]


@dataclass(frozen=True, repr=False)
class Preferences:
    name: str
    settings: Population
    contexts: tuple[str, ...]
    shares: tuple[float, ...]  # relative sizes of the sub-populations, if imbalanced
    training: Pool
    testing: Pool
    source: str  # identifies the content of the pools
    place: Path | None = None  # the folder the pools were read from

    loaded_by: Any = field(default=None, compare=False)  # the settings it was loaded with, if `homespun.load` did it

    labels = LABELS
    __repr__ = short_repr

    def __post_init__(self) -> None:
        kinds, settings = len(self.contexts), self.settings
        if settings.users < kinds:
            raise SettingsError(
                f"{self.name}: {kinds} sub-populations need at least {kinds} users, got {settings.users}"
            )
        known = (settings.train + settings.validation + settings.test * settings.overlap) // 2
        for pool, wanted, use in ((self.training, known, "training"), (self.testing, settings.test // 2, "testing")):
            fewest = min(len(rows) for rows in pool.of_kind)
            if fewest < wanted:
                raise DataError(
                    f"{self.name}: for {use} a user needs {wanted} images of one kind, but some kind has only {fewest}"
                )

    @cached_property
    def fingerprint(self) -> str:
        # without the folder: the same images in another folder are the same corpus
        settings = self.settings.model_dump_json(exclude={"folder"})
        return hashlib.sha256(f"{self.source} {settings}".encode()).hexdigest()

    @cached_property
    def users(self) -> Sequence[str]:
        return NumberedNames(self.settings.users)

    @cached_property
    def group_of(self) -> np.ndarray:
        """The sub-population of every user: sizes according to the shares, in random order."""
        count, kinds = self.settings.users, len(self.contexts)
        shares = np.full(kinds, 1 / kinds) if self.settings.balance == "balanced" else np.array(self.shares)
        ends = np.floor(np.cumsum(shares) * count + 0.5).astype(np.int64)
        groups = np.repeat(np.arange(kinds), np.diff(ends, prepend=0))
        return numpy_generator(self.settings.seed, "preferences.groups").permutation(groups)

    def group(self, user: int) -> str | None:
        return self.contexts[self.group_of[user]]

    def examples(self, user: int) -> Examples:
        if not 0 <= user < len(self.users):
            raise IndexError(f"no user {user} among {len(self.users)}")
        return self._drawn(int(self.group_of[user]), author=user, draw=("preferences.user", user))

    def prototypical(self, group: int, number: int = 0) -> Examples:
        """Training examples of a synthetic user of this sub-population, created by the server and public."""
        everything = self._drawn(group, author=-1, draw=("preferences.prototype", group, number))
        return everything.take(np.flatnonzero(everything.parts == TRAIN))

    def _drawn(self, group: int, *, author: int, draw: tuple[str, *tuple[int, ...]]) -> Examples:
        generator, settings = numpy_generator(self.settings.seed, *draw), self.settings
        known, new = {TRAIN: settings.train, EVAL: settings.validation}, {TEST: settings.test}
        wanted = [(self.training, known | new)] if settings.overlap else [(self.training, known), (self.testing, new)]
        drawn = [(pool, *_rows(pool, group, sizes, generator)) for pool, sizes in wanted]
        kinds = np.concatenate([pool.kinds[rows] for pool, rows, _ in drawn])
        return Examples(
            images=Images(
                tuple(pool.images for pool, _, _ in drawn),
                np.repeat(np.arange(len(drawn)), [len(rows) for _, rows, _ in drawn]),
                np.concatenate([rows for _, rows, _ in drawn]),
            ),
            labels=(kinds == group).astype(np.int64),
            contexts=kinds,
            authors=np.full(len(kinds), author, dtype=np.int64),
            groups=np.full(len(kinds), group, dtype=np.int64),
            parts=np.concatenate([parts for _, _, parts in drawn]),
        )


def _rows(
    pool: Pool, group: int, sizes: dict[int, int], generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw without replacement; half of every part is liked (rounded down), the rest is not liked."""
    half, rest = ([size // 2 for size in sizes.values()], [size - size // 2 for size in sizes.values()])
    liked = generator.choice(pool.of_kind[group], sum(half), replace=False)
    disliked = generator.choice(pool.of_others[group], sum(rest), replace=False)
    parts = np.repeat([*sizes, *sizes], [*half, *rest])
    order = generator.permutation(len(parts))
    return np.concatenate([liked, disliked])[order], parts[order]
