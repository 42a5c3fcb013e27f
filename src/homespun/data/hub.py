"""Loads Hugging Face data sets by name. Needs the `datasets` library and a network."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

from homespun.core.errors import DataError
from homespun.data import readers
from homespun.data.columns import Columns
from homespun.data.records import Faults, Record
from homespun.data.table import Filters, TableFederation, build_table

EXTRA = "pip install 'homespun[hub]'"
NO_SCRIPTS = 4  # from this major version of datasets on, data sets cannot run scripts


class Settings(Filters):
    """The filters of a file, and the part of the data set to load."""

    subset: str | None = None
    """Configuration of the data set. Not set: its default."""
    split: str = "train"
    """Split of the data set."""


def available() -> bool:
    return importlib.util.find_spec("datasets") is not None


def read_hub(name: str, *, columns: Columns, settings: Settings, otherwise: str = "") -> TableFederation:
    """The federation in a data set of the hub. `otherwise` ends the error message: what else the name may mean."""
    datasets = importlib.import_module("datasets")
    if int(datasets.__version__.partition(".")[0]) < NO_SCRIPTS:
        raise DataError(f"{name}: datasets {datasets.__version__} can run scripts of a data set. Update it: {EXTRA}")
    try:
        rows = datasets.load_dataset(name, settings.subset, split=settings.split)
    except Exception as error:  # the library passes on any exception of its network stack
        raise DataError(
            f"{name}: not built in, not a file, and not found on the Hugging Face hub "
            f"({type(error).__name__}). Check the name, the settings and the network.{otherwise}"
        ) from error
    digest, faults = hashlib.sha256(), Faults()
    collected = readers.collect(_records(rows, columns, digest), columns, faults=faults, where=name, filters=settings)
    return build_table(
        collected,
        name=name,
        fingerprint=readers.fingerprint(digest.hexdigest(), columns, settings),
        filters=settings,
    )


def _records(rows: Any, columns: Columns, digest: Any) -> Iterator[Record]:
    for number, values in enumerate(rows, start=1):
        used = [values.get(name) for name in columns.chosen]
        digest.update(repr(used).encode("utf-8", "surrogatepass"))
        yield Record(f"row {number}", values)
