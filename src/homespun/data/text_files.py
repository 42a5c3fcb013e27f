"""Reads the sentences of a plain text file (.txt) or of a Markdown file (.md) without its markup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from homespun.core.errors import DataError, nearest
from homespun.data.sentences import split_sentences
from homespun.data.text_decoding import decode_text

SUFFIXES = (".txt", ".md")

# A wrapped line ends in the middle of a sentence, which continues in lower case on the next line with a word that had
# no room. In narrower paragraphs every line is a message or a note.
_UNFINISHED = re.compile(r"[\w,;:’'\"”)]$")
NARROWEST = 40
# Markdown, in the order of removal: code blocks, links and images, markers at the start of a line, emphasis
_MARKUP = (
    (re.compile(r"^(```|~~~).*?^\1.*?$", re.MULTILINE | re.DOTALL), ""),
    (re.compile(r"!?\[([^\]\n]*)\]\([^)\n]*\)"), r"\1"),
    (re.compile(r"^[ \t]*(?:#{1,6}|>|[-*+]|\d{1,3}\.)[ \t]+", re.MULTILINE), ""),
    (re.compile(r"(?<!\w)([*_`]{1,3})(?=\S)(.+?)(?<=\S)\1(?!\w)"), r"\2"),
)


def is_text_file(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def read_text_file(path: Path) -> list[str]:
    """The sentences of a text file, in order."""
    if path.is_dir():
        raise DataError(f"{path}: a folder. Name a text file.")
    if not path.exists():
        beside = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else []
        raise DataError(f"{path}: no such file.{nearest(path.name, beside)}")
    text = decode_text(path.read_bytes(), where=str(path), remedy="Save the file as plain text in UTF-8.")
    sentences = text_sentences(text, markdown=path.suffix.lower() == ".md")
    if not sentences:
        raise DataError(f"{path}: contains no sentence. Use a file with at least one.")
    return sentences


def text_sentences(text: str, *, markdown: bool = False) -> list[str]:
    """The sentences of a text. Wrapped lines are joined."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    for pattern, kept in _MARKUP if markdown else ():
        text = pattern.sub(kept, text)
    return split_sentences(join_wrapped(text))


def join_wrapped(text: str) -> str:
    """The text with every wrapped line joined to the next one."""
    return "\n".join(line for paragraph in re.split(r"\n[ \t]*(?=\n)", text) for line in _joined(paragraph.split("\n")))


def _joined(lines: Sequence[str]) -> list[str]:
    """The lines of a paragraph."""
    stripped = [line.strip() for line in lines]
    width = max(map(len, stripped))
    found = stripped[:1]
    for before, line in pairwise(stripped):
        word = line.split(" ", 1)[0]
        had_no_room = width >= NARROWEST and len(before) + 1 + len(word) > width
        if had_no_room and _UNFINISHED.search(before) and re.match("[a-z]", line):
            found[-1] += f" {line}"
        else:
            found.append(line)
    return found
