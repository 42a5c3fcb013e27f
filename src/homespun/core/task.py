"""What a method knows of its task and of the files it is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """What a method needs to know about the data before training.

    Example:
        >>> Task(classes=2, population=400).contexts
        0
    """

    classes: int = 0
    population: int = 0
    contexts: int = 0
    image: tuple[int, int] | None = None  # height and width, if examples are images
    profile: tuple[int, ...] = ()  # how many values each column of users' profiles has, with one for unknown

    def __post_init__(self) -> None:
        if self.image is not None:  # workers get the task as JSON, which has lists only
            height, width = self.image
            object.__setattr__(self, "image", (height, width))
        object.__setattr__(self, "profile", tuple(self.profile))


@dataclass(frozen=True)
class Window:
    """How much of a text a method reads; the rest is cut.

    Example:
        >>> window = Window("length", 40, unit="characters", sizes=lambda texts: [len(text) for text in texts])
        >>> window.sizes(["four"])
        [4]
    """

    setting: str  # name of the setting that sets the length
    length: int
    unit: str  # "characters" or "tokens"
    sizes: Callable[[Sequence[str]], Sequence[int]]  # lengths of whole texts in this unit


@dataclass(frozen=True)
class Artefact:
    """An input of runs that was made before, for instance a base model. Its fingerprint is part of a run's identity;
    its name locates it on this machine.

    Example:
        >>> Artefact("base_model", "tiny", fingerprint="ab12").kind
        'base model'
    """

    setting: str  # the method's setting that names it
    name: str
    fingerprint: str
    kind: str = "base model"


@dataclass(frozen=True)
class MethodFile:
    """A source file of a method outside the package, with the content that was run."""

    path: str  # absolute path
    sha256: str  # of the file's bytes
    source: str
