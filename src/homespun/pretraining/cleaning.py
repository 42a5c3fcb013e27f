"""Extracts paragraphs of prose from the files of packages, without markup, code, tables and lists of names."""

from __future__ import annotations

import bz2
import csv
import gzip
import html
import io
import re
import zipfile
from collections.abc import Iterator
from html.parser import HTMLParser

MIN_WORDS = 6
MIN_LETTERS = 0.93  # share of letters, spaces and ordinary punctuation among all characters
MAX_WORD = 30

_STRAIGHT = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "\u00a0": " ", "\u00ad": "", "…": "..."})
_PROSE_CHARACTERS = re.compile(r"[A-Za-z ,.;:'\"!?()0-9$%&-]")
_CODE = re.compile(r"[{}<>|\\=_^~@#`*]|://|\(\)|[a-z]\.[a-z]{2,}|[a-z][A-Z]|/[a-z]+/")
_END = re.compile(r"[.!?][\"')\]]*$")


def plain(text: str) -> str:
    """The text on one line with straight quotation marks, like the evaluated text."""
    return " ".join(text.translate(_STRAIGHT).split())


def is_prose(paragraph: str) -> bool:
    """Whether a paragraph looks like prose: enough words, a sentence end, and no code."""
    words = paragraph.split()
    if len(words) < MIN_WORDS or not _END.search(paragraph) or max(map(len, words)) > MAX_WORD:
        return False
    if len(_CODE.findall(paragraph)) * 50 > len(words):
        return False
    shouted, numbers = sum(word.isupper() for word in words), sum(word[0].isdigit() for word in words)
    if shouted * 4 > len(words) or numbers * 5 > len(words):
        return False
    return len(_PROSE_CHARACTERS.findall(paragraph)) >= MIN_LETTERS * len(paragraph)


class _Paragraphs(HTMLParser):
    """The text of paragraphs and list items, without code and tables."""

    TEXT = frozenset({"p", "li", "dd", "blockquote"})
    SKIPPED = frozenset({"pre", "table", "script", "style", "head", "nav", "h1", "h2", "h3", "h4", "sup", "title"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.paragraphs: list[str] = []
        self._pieces: list[str] = []
        self._skipping = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in self.SKIPPED:
            self._skipping += 1
        if tag in self.TEXT or tag in self.SKIPPED or tag in ("div", "ul", "ol", "dl", "dt"):
            self.close_paragraph()

    def handle_endtag(self, tag: str) -> None:
        if tag in self.SKIPPED:
            self._skipping = max(0, self._skipping - 1)
        if tag in self.TEXT or tag in ("div", "ul", "ol", "dl", "dt"):
            self.close_paragraph()

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self._pieces.append(data)

    def close_paragraph(self) -> None:
        self.paragraphs.append("".join(self._pieces))
        self._pieces = []


def from_html(content: bytes) -> Iterator[str]:
    """Web pages, DocBook's HTML output."""
    text = content.decode("utf-8", errors="replace")
    if "\ufffd" in text:
        text = content.decode("cp1252", errors="replace")
    parser = _Paragraphs()
    parser.feed(text)
    parser.close_paragraph()
    yield from parser.paragraphs


# Sources of quotations, like [Op. Cit., vol. 42, p. 170]
_CITATION = re.compile(r"\s*\[[^\]]{0,200}\]")


def from_html_with_citations(content: bytes) -> Iterator[str]:
    """Web pages with many citations: text in square brackets is left out."""
    for paragraph in from_html(content):
        yield _CITATION.sub("", plain(paragraph)).replace(" . . .", "...").replace(". . .", "...")


def from_lines(content: bytes) -> Iterator[str]:
    """Text with one paragraph per line."""
    yield from content.decode("utf-8", errors="replace").splitlines()


def from_blocks(content: bytes) -> Iterator[str]:
    """Text with blank lines between paragraphs. Blocks with runs of spaces are tables or verse and are left out."""
    text = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    for block in re.split(r"\n\s*\n", text.decode("utf-8", errors="replace")):
        if not re.search(r"\S {3,}\S", block):
            yield re.sub(r"^\s*[*•-] ", "", block)


_CROSS_REFERENCE = re.compile(r"\{([^{}]*)\}")
_ASIDE = re.compile(r"<[^<>]*>|\(?(?:19|20)\d\d-\d\d-\d\d\)?|\(https?:[^)]*\)|/[^/ ]{2,40}/")


def from_dictionary(content: bytes) -> Iterator[str]:
    """A dictd dictionary: definitions with {cross references}, <fields>, pronunciations and dates."""
    for block in from_blocks(content):
        yield _ASIDE.sub("", _CROSS_REFERENCE.sub(r"\1", plain(block)))


def from_glosses(content: bytes) -> Iterator[str]:
    """The example sentences in WordNet's data files, which are in quotation marks after a vertical bar."""
    for line in content.decode("utf-8", errors="replace").splitlines():
        for example in re.findall(r'"([^"]+)"', line.partition("|")[2]):
            sentence = plain(example).rstrip(";,")
            if sentence[:1].isalpha() and len(sentence.split()) > 4:
                yield sentence[0].upper() + sentence[1:] + ("" if _END.search(sentence) else ".")


def from_backticks(content: bytes) -> Iterator[str]:
    """The narrative texts in a game's data files, which are in backticks. Texts with <placeholders> are left out."""
    for narrative in re.findall(r"`([^`\n]+)`", content.decode("utf-8", errors="replace")):
        if "<" not in narrative:
            yield narrative


def from_zipped_csv(content: bytes) -> Iterator[str]:
    """A zip archive with one CSV file that has a column `text`."""
    csv.field_size_limit(1 << 24)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in archive.namelist():
            with archive.open(name) as file:
                for row in csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline="")):
                    yield from row["text"].replace("Â", "").splitlines()  # £ was encoded twice


_WIKI_DROP = (
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"<ref[^>/]*/>|<ref.*?</ref>", re.DOTALL),
    re.compile(r"<(math|gallery|table|code|pre|timeline|score)\b.*?</\1>", re.DOTALL),
    re.compile(r"</?[a-zA-Z][^<>]*>"),
)
_WIKI_INNERMOST = re.compile(r"\{\{[^{}]*\}\}|\{\|[^{}]*\|\}")
_WIKI_FILE = re.compile(r"\[\[(?:File|Image|Category|[a-z-]{2,12}):(?:[^\[\]]|\[\[[^\[\]]*\]\])*\]\]", re.IGNORECASE)
_WIKI_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
_WIKI_URL = re.compile(r"\[https?:\S+ ?([^\]]*)\]")


def from_wikipedia(content: bytes) -> Iterator[str]:
    """A bzip2-ed export of Wikipedia: the paragraphs of its articles."""
    export = bz2.BZ2Decompressor().decompress(content).decode("utf-8", errors="replace")
    for article in re.findall(r"<text[^>]*>(.*?)</text>", export, re.DOTALL):
        text = html.unescape(article)
        for pattern in _WIKI_DROP:
            text = pattern.sub("", text)
        for _ in range(6):  # nested templates
            text = _WIKI_INNERMOST.sub("", text)
        text = (
            _WIKI_URL.sub(r"\1", _WIKI_LINK.sub(r"\1", _WIKI_FILE.sub("", text))).replace("'''", "").replace("''", "")
        )
        for line in text.splitlines():
            if line[:1] not in ("=", "|", "!", "*", "#", ":", ";", "{"):
                yield re.sub(r"\(\s*[;,]?\s*\)", "", line)
