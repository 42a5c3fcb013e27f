"""Names and texts as they are shown and typed: what commands a terminal, or cannot be typed, is spelled out."""

from __future__ import annotations

import re
from unicodedata import category

_SPELLED = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")


def harmless(text: str) -> str:
    r"""The text with every sign that would command a terminal, or be invisible, spelled out: \x1b, \u202e."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in "\n\t" else _spelled(sign) for sign in text)


def readings(typed: str) -> tuple[str, ...]:
    r"""What somebody may mean who types a name: the name as it stands, or else as `harmless` shows it.

    A command line cannot hold a NUL, so `a\x00b` may be one. Where the name as it stands is known, it is meant.
    """
    read = _SPELLED.sub(lambda found: _sign(found[0], int(found[1] or found[2] or found[3], 16)), typed)
    return (typed,) if read == typed else (typed, read)


def _spelled(sign: str) -> str:
    if category(sign) == "Zs":  # a space, whatever its width
        return sign
    code = ord(sign)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _sign(spelled: str, code: int) -> str:
    return chr(code) if code <= 0x10FFFF else spelled
