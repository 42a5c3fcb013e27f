"""People who disagree about the same things: each likes one kind of them and nothing else.

This is how the FedEmbed paper makes users of a labelled collection (Silva et al., 2022, section 4). A user of
sub-population k has as many examples of kind k, which they call liked, as of all other kinds together, which they call
not liked. The kind of an example is its context; what the user says of it is its label.

Nobody is held in memory: a user is a formula over a pool of images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from homespun.core.errors import DataError, SettingsError
from homespun.core.seeds import numpy_generator
from homespun.core.settings import Paper, Settings
from homespun.data.federation import Examples, Images
from homespun.data.user_names import NumberedNames

LABELS = ("not liked", "liked")
TRAIN, EVAL, TEST = range(3)


class Population(Settings):
    """Who is there, and how much each of them has."""

    users: Annotated[PositiveInt, Paper("9000 (MNIST)")] = 300
    """Users; each likes one kind of image."""
    balance: Literal["balanced", "imbalanced"] = "balanced"
    """Whether sub-populations are equally large, or as different in size as in the paper."""
    train: Annotated[PositiveInt, Paper(20)] = 20
    """Training examples of a user; half of them liked."""
    validation: Annotated[NonNegativeInt, Paper(0)] = 4
    """Examples of a user for the evaluation part; drawn from the training pool and never trained on."""
    test: Annotated[PositiveInt, Paper(10)] = 10
    """Test examples of a user; half of them liked."""
    overlap: Annotated[bool, Paper(True)] = False
    """Whether test examples are drawn from the training pool too, where other users may train on them."""
    seed: NonNegativeInt = 0
    """Draws the users and their examples."""


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


@dataclass(frozen=True)
class Preferences:
    name: str
    settings: Population
    contexts: tuple[str, ...]
    shares: tuple[float, ...]  # of the sub-populations, where they are not balanced
    training: Pool
    testing: Pool
    source: str  # changes when the pools do
    place: Path | None = None  # the folder they were read from

    labels = LABELS

    def __post_init__(self) -> None:
        kinds, settings = len(self.contexts), self.settings
        if settings.users < kinds:
            raise SettingsError(
                f"{self.name}: {kinds} sub-populations need at least as many users, got {settings.users}"
            )
        known = (settings.train + settings.validation + settings.test * settings.overlap) // 2
        for pool, wanted, use in ((self.training, known, "training"), (self.testing, settings.test // 2, "testing")):
            fewest = min(len(rows) for rows in pool.of_kind)
            if fewest < wanted:
                raise DataError(
                    f"{self.name}: for {use} a user needs {wanted} images of one kind, "
                    f"and of one there are only {fewest}"
                )

    @cached_property
    def fingerprint(self) -> str:
        # not where the pools lie: the same images elsewhere are the same corpus
        settings = self.settings.model_dump_json(exclude={"folder"})
        return hashlib.sha256(f"{self.source} {settings}".encode()).hexdigest()

    @cached_property
    def users(self) -> Sequence[str]:
        return NumberedNames(self.settings.users)

    @cached_property
    def group_of(self) -> np.ndarray:
        """Everybody's sub-population: as many of each as the shares say, in an order of no meaning."""
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
        """Training examples of somebody of this sub-population whom the server made up and everybody may know."""
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
    """Of every part, half liked and half not (one more not liked where it is odd), no image twice."""
    half, rest = ([size // 2 for size in sizes.values()], [size - size // 2 for size in sizes.values()])
    liked = generator.choice(pool.of_kind[group], sum(half), replace=False)
    disliked = generator.choice(pool.of_others[group], sum(rest), replace=False)
    parts = np.repeat([*sizes, *sizes], [*half, *rest])
    order = generator.permutation(len(parts))
    return np.concatenate([liked, disliked])[order], parts[order]
