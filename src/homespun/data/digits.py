"""`digits`: users who each like one digit and none of the others, over scikit-learn's bundled digits or over MNIST.

scikit-learn's 1,797 images need no download; they are enlarged from 8 x 8 to 28 x 28. MNIST is read from a folder with
its four IDX files, gzipped or not: `--data-set folder=mnist --data-set users=9000`.
"""

from __future__ import annotations

import gzip
import hashlib
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from homespun.core.errors import DataError, raise_faults
from homespun.core.seeds import numpy_generator
from homespun.core.settings import parse
from homespun.data.preferences import Pool, Population, Preferences

SIDE = 28
DIGITS = tuple(str(digit) for digit in range(10))
SHARES = (0.25, 0.15, *[0.10] * 4, *[0.05] * 4)  # the paper's imbalanced population
TESTED = 0.28  # share of the bundled images in the test pool, like 10 of a user's 30 plus a few
PARTS = {"training": "train", "testing": "t10k"}


class Settings(Population):
    folder: str | None = None
    """Folder with MNIST's four IDX files. Not set: scikit-learn's bundled digits."""


def load(settings: Mapping[str, Any]) -> Preferences:
    chosen = parse(Settings, settings, where="digits", listed_by="homespun data settings digits")
    training, testing = _bundled() if chosen.folder is None else read_mnist(Path(chosen.folder))
    content = hashlib.sha256()
    for pool in (training, testing):
        content.update(pool.images.tobytes() + pool.kinds.tobytes())
    place = None if chosen.folder is None else Path(chosen.folder).resolve()
    return Preferences("digits", chosen, DIGITS, SHARES, training, testing, source=content.hexdigest(), place=place)


def _bundled() -> tuple[Pool, Pool]:
    from sklearn.datasets import load_digits  # slow to import, so only on demand

    found = load_digits()
    large = functional.interpolate(
        torch.from_numpy(found.images)[:, None].float() * (255 / 16), size=SIDE, mode="bilinear", antialias=True
    )
    images = large[:, 0].round().clamp(0, 255).to(torch.uint8).numpy()
    order = numpy_generator(0, "digits.pools").permutation(len(images))
    tested = round(TESTED * len(images))
    return tuple(Pool(images[rows], found.target[rows].astype(np.int64)) for rows in (order[tested:], order[:tested]))  # type: ignore[return-value]


def read_mnist(folder: Path) -> tuple[Pool, Pool]:
    """The training and test images in a folder. All faults of its files are reported at once."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder. Name the folder with MNIST's four IDX files.")
    faults: list[str] = []
    pools = [_read_pool(folder, prefix, faults) for prefix in PARTS.values()]
    if faults:
        raise_faults(DataError, str(folder), faults)
    return pools[0], pools[1]


def _read_pool(folder: Path, prefix: str, faults: list[str]) -> Pool:
    images = _read_idx(folder, f"{prefix}-images-idx3-ubyte", dimensions=3, faults=faults)
    kinds = _read_idx(folder, f"{prefix}-labels-idx1-ubyte", dimensions=1, faults=faults)
    if images is not None and kinds is not None:
        if len(images) != len(kinds):
            faults.append(f"{prefix}: {len(images)} images but {len(kinds)} labels. Copy both files from one source.")
        elif images.shape[1:] != (SIDE, SIDE) or set(np.unique(kinds)) != set(range(10)):
            faults.append(f"{prefix}: not {SIDE} x {SIDE} images of the ten digits.")
        else:
            return Pool(images, kinds.astype(np.int64))
    return Pool(np.zeros((0, SIDE, SIDE), np.uint8), np.zeros(0, np.int64))


def _read_idx(folder: Path, name: str, *, dimensions: int, faults: list[str]) -> np.ndarray | None:
    path = next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
    if path is None:
        faults.append(f"no {name} or {name}.gz. Copy it into the folder.")
        return None
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        magic, *shape = struct.unpack_from(f">{1 + dimensions}I", data)
    except (OSError, EOFError, zlib.error, struct.error):
        faults.append(f"{path.name}: damaged or truncated. Copy it again.")
        return None
    if magic != 0x0800 + dimensions:
        faults.append(f"{path.name}: not an IDX file of bytes with {dimensions} dimension(s).")
        return None
    numbers = np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * dimensions)
    if len(numbers) != np.prod(shape):
        faults.append(f"{path.name}: {len(numbers)} numbers, but its header says {np.prod(shape)}. Copy it again.")
        return None
    return numbers.reshape(shape)
