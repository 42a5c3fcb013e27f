"""Every random draw derives from (run seed, purpose, and what it is for).

Draws never share a stream, so adding a draw somewhere never moves one elsewhere, a resumed run
draws what the uninterrupted one would have, and a user's draws do not depend on who else is there.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
import torch


def derive(seed: int, purpose: str, *parts: int | str) -> int:
    """A 64-bit key for one purpose, for instance `derive(7, "batches", round, user)`."""
    # JSON keeps the parts apart whatever is in them, and is ASCII even for a lone surrogate
    digest = hashlib.blake2b(json.dumps([seed, purpose, *parts]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def numpy_generator(seed: int, purpose: str, *parts: int | str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(derive(seed, purpose, *parts)))


def torch_generator(seed: int, purpose: str, *parts: int | str) -> torch.Generator:
    # torch's seeds are signed
    return torch.Generator().manual_seed(derive(seed, purpose, *parts) >> 1)
