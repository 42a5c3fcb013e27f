"""Escapes control and invisible characters in names and texts that are printed, and reads such escapes back."""

from __future__ import annotations

import re
from unicodedata import category

_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")


def escape_unprintable(text: str) -> str:
    r"""Escape characters that control a terminal or are invisible: \x1b, \u202e. Newlines and tabs are kept."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else _escape(char) for char in text)


def name_candidates(typed: str) -> tuple[str, ...]:
    r"""Return the names that a typed name may stand for: the text itself, then the text with its escapes decoded.

    A command line cannot contain a NUL character, so a user types `a\x00b`. Callers try the names in this order.
    """
    decoded = _ESCAPE.sub(lambda match: _decode(match[0], int(match[1] or match[2] or match[3], 16)), typed)
    return (typed,) if decoded == typed else (typed, decoded)


def _escape(char: str) -> str:
    if category(char) == "Zs":  # a space of any width
        return char
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _decode(escape: str, code: int) -> str:
    return chr(code) if code <= 0x10FFFF else escape
