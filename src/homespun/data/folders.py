"""A folder of texts as a federation: a file `anna.txt` holds the texts of user anna, and so does a folder `anna`.

Each sentence is an example, as when personalizing for the text of a new user.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from homespun.core.errors import DataError, SettingsError
from homespun.data.columns import Columns
from homespun.data.limited_streams import EXAMPLE_BYTES, ByteLimit
from homespun.data.readers import FileSettings, fingerprint
from homespun.data.records import Faults
from homespun.data.table import Collector, TableFederation, build_table
from homespun.data.text_decoding import decode_text
from homespun.data.text_files import SUFFIXES, is_text_file, text_sentences


def read_folder(folder: Path, *, columns: Columns, settings: FileSettings) -> TableFederation:
    """The federation in a folder of .txt and .md files, with users sorted by name."""
    if columns != Columns():
        raise SettingsError(f"{folder}: a folder of texts has no columns. Leave the column options out.")
    if settings.max_words is not None:
        raise SettingsError(f"{folder}: a folder of texts has no conversations. Leave max_words out.")
    paths = sorted((path for path in _files(folder) if is_text_file(path)), key=lambda path: path.parts)
    if not paths:
        raise DataError(f"{folder}: a folder without {' or '.join(SUFFIXES)} files{_other_files(folder)}.")
    size = sum(os.path.getsize(folder / path) for path in paths if (folder / path).exists())
    byte_limit = ByteLimit(str(folder), packed=size, max_bytes=settings.max_bytes)
    collected, faults, digest = Collector(), Faults(), hashlib.sha256()
    for path in paths:
        try:
            content = (folder / path).read_bytes()
            sentences = _sentences(content, path, settings)
        except OSError as error:
            faults.add(f"{path}: cannot be read ({error.strerror or 'input/output error'}).")
            continue
        except DataError as error:
            faults.add(str(error))
            continue
        byte_limit.spend(len(content) + EXAMPLE_BYTES * len(sentences))
        digest.update(json.dumps([path.as_posix(), hashlib.sha256(content).hexdigest()]).encode())
        user = path.parts[0] if len(path.parts) > 1 else path.stem
        for sentence in sentences or [""]:
            collected.add(user, sentence, label=None, context=None)
    faults.raise_if_any(str(folder))
    corpus_fingerprint = fingerprint(digest.hexdigest(), columns, settings)
    return replace(
        build_table(collected, name=folder.resolve().name, fingerprint=corpus_fingerprint, filters=settings),
        place=folder.resolve(),
    )


def _files(folder: Path) -> Iterator[Path]:
    """All files below a folder, relative to it. Hidden files and folders are skipped."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place, name).relative_to(folder) for name in names if not name.startswith("."))


def _other_files(folder: Path) -> str:
    """The number of files by suffix, for an error message."""
    suffixes = Counter(path.suffix.lower() or "without a suffix" for path in _files(folder))
    found = ", ".join(f"{count} {suffix}" for suffix, count in suffixes.most_common(3))
    return f" (it has {found}). Name one of its files" if found else ""


def _sentences(content: bytes, path: Path, settings: FileSettings) -> list[str]:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise DataError("a file name is not UTF-8. Rename the file.") from None
    text = decode_text(content, where=str(path), encoding=settings.encoding)
    return text_sentences(text, markdown=path.suffix.lower() == ".md")
