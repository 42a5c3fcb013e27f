"""Random generators, derived from the run's seed, a purpose, and further parts such as the round and the user.

Draws for different purposes are independent: a new draw does not change others, a resumed run draws the same numbers as
an uninterrupted one, and a user's draws do not depend on the other users.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
import torch


def derive(seed: int, purpose: str, *parts: int | str) -> int:
    """Derive a 64-bit key for one purpose, for instance `derive(7, "batches", round, user)`."""
    # JSON separates the parts unambiguously and is ASCII, even for a lone surrogate
    digest = hashlib.blake2b(json.dumps([seed, purpose, *parts]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def numpy_generator(seed: int, purpose: str, *parts: int | str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(derive(seed, purpose, *parts)))


def torch_generator(seed: int, purpose: str, *parts: int | str) -> torch.Generator:
    # torch's seeds are signed
    return torch.Generator().manual_seed(derive(seed, purpose, *parts) >> 1)
