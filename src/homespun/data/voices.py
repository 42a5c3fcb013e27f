"""`voices`: users who each like one of twenty synthetic voices, whatever it says, and none of the others.

`homespun data voices runs/voices` makes the set once, offline; see `homespun.data.spectrogram_set`. Each voice is a
mixture of two of eight base voices, and every mixed pair gives two voices, which makes voices harder to tell apart than
digits. Spectrograms stay on disk until a user's examples are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import PositiveInt

from homespun.core.settings import Paper, parse
from homespun.data.preferences import Pool, Population, Preferences
from homespun.data.spectrogram_set import VOICES, read_manifest, read_spectrograms

NAMES = tuple(f"voice {number}" for number in range(VOICES))
# The paper's imbalanced population: a majority, a larger minority, and a long tail.
SHARES = tuple({0: 0.20, 5: 0.08}.get(number, 0.04) for number in range(VOICES))


class Settings(Population):
    folder: str = "runs/voices"
    """Folder that `homespun data voices` made."""
    users: Annotated[PositiveInt, Paper(900)] = 900
    """Users; each likes one voice."""


def load(settings: Mapping[str, Any]) -> Preferences:
    chosen = parse(Settings, settings, where="voices", listed_by="homespun data settings voices")
    folder = Path(chosen.folder)
    manifest = read_manifest(folder)
    images, kinds, ends = read_spectrograms(folder, manifest), np.array(manifest.voice), manifest.training
    return Preferences(
        "voices",
        Population(**chosen.model_dump(exclude={"folder"})),  # the same set in another folder is the same corpus
        NAMES,
        SHARES,
        training=Pool(images[:ends], kinds[:ends]),
        testing=Pool(images[ends:], kinds[ends:]),
        # the manifest holds the spectrograms' hash, so that the file itself need not be read
        source=hashlib.sha256(manifest.to_json().encode()).hexdigest(),
        place=folder.resolve(),
    )
