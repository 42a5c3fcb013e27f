"""English text as words, for word-level dialogue models, and words as text.

    words("Well... I'm not sure. Don't you know?!")
    ["well", "...", "i'm", "not", "sure", ".", "don't", "you", "know", "?", "!"]

The tokens are, all in lower case:

- words, with the apostrophes and hyphens inside them (`don't`, `mm-hmm`); those at either end are dropped (`'em`). The
  combining marks after a letter belong to it, as in Hindi. Text without spaces, as in Japanese, is one word;
- numbers, with the signs between their digits (`1,000`, `3.5`, `10:30`), and abbreviations (`a.m.`, `f.b.i.`);
- `.`, `,`, `?`, `!`, and directly after a word `;` and `:`. Two or more periods, also with spaces between them, are the
  token `...`; a run of question and exclamation marks is one of each, in the order of their first appearance;
- `-` for a dash: `--`, a typographic dash, or a hyphen without a letter behind it;
- `$`, `%` and `&`.

Everything else separates words and is dropped: quotes, brackets, asterisks, slashes, emoji. The words in brackets are
kept, because speakers of chats write remarks in them; the scripts we know have no stage directions in their texts.
`mr`, `mrs`, `ms` and `dr` have no period, whether the text has one or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from unicodedata import category, normalize

_TYPOGRAPHY = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02bc\u00b4`", "'"),
        **dict.fromkeys("\u2012\u2013\u2014\u2015", "--"),
        "\u2010": "-",
        "\u2011": "-",
        "\u2026": "...",
        "\u00ad": None,  # a soft hyphen
        "\u200b": None,  # spaces of no width
        "\u200c": None,
        "\u200d": None,
        "\ufeff": None,
        "\ufe0e": None,  # choices between a sign and an emoji
        "\ufe0f": None,
    }
)
_COMBINING = ("Mn", "Mc")  # categories of combining marks
_UNUSED = range(0x20000, 0x2A6D0)  # letters that no text is likely to have: more than there are marks
_DROPPED = re.compile(
    r"(?:[^\w\s.,?!;:'$%&-]|_"
    r"|(?<![^\W_])(?<!\.)[;:]"  # `;` and `:` that follow neither a word nor an abbreviation
    r"|(?<![^\W_])'|'(?![^\W_])"  # an apostrophe before or after a word
    r"|(?<![^\W_])(?<!-)-(?=[^\W_]))+"  # a hyphen before a word
)
_ABBREVIATION = re.compile(r"\b((?:[^\W\d_]\.)+[^\W\d_])\b\.?")
_TITLE = re.compile(r"\b(mr|mrs|ms|dr)\s*\.(?!\s*\.)")
_ELLIPSIS = re.compile(r"\.[.\s]*\.")
_MARKS = re.compile(r"[?!][?!\s]*[?!]")
_TOKEN = re.compile(
    r"\.\.\."
    r"|(?:[^\W\d_]\.){2,}"
    r"|\d+(?:[.,:]\d+)+"
    r"|[^\W_]+(?:['-][^\W_]+)*"
    r"|[.,?!;:$%&]"
    r"|--+|-(?![^\W_])"
)
_TITLES = {"mr": "Mr.", "mrs": "Mrs.", "ms": "Ms.", "dr": "Dr."}
_FIRST_PERSON = {"i", "i'm", "i'll", "i've", "i'd"}
_CLOSING = frozenset({".", ",", "?", "!", ";", ":", "...", "%"})  # no space before them
_ENDING = frozenset({".", "?", "!"})  # a sentence ends after them


def words(text: str) -> list[str]:
    """The words and signs of a text."""
    text = spell_alike(text)
    if not text.isascii() and (marks := _marks_in(text)):
        return _words_with_marks(text, marks)
    return _split(text)


def spell_alike(text: str) -> str:
    """A text in lower case, with the apostrophes, dashes and composed letters that words have."""
    text = text.lower()
    return text.replace("`", "'") if text.isascii() else normalize("NFC", text.translate(_TYPOGRAPHY))


def is_in_word(sign: str) -> bool:
    """Whether a sign is a letter, a digit or a combining mark."""
    return sign.isalnum() or category(sign) in _COMBINING


def _marks_in(text: str) -> list[str]:
    return sorted(sign for sign in set(text) if category(sign) in _COMBINING)


def _words_with_marks(text: str, marks: Iterable[str]) -> list[str]:
    """The words of a text with combining marks, which `re` does not take for parts of a word: unused letters take their
    place. Marks that follow no letter are dropped."""
    unused = (letter for letter in map(chr, _UNUSED) if letter not in text)
    letters = dict(zip(marks, unused, strict=False))
    signs, inside = [], False
    for sign in text:
        inside = sign.isalnum() or (inside and sign in letters)
        signs.append(letters.get(sign, sign) if inside else " " if sign in letters else sign)
    back = str.maketrans({letter: mark for mark, letter in letters.items()})
    return [word.translate(back) for word in _split("".join(signs))]


def _split(text: str) -> list[str]:
    text = _DROPPED.sub(" ", text)
    if "." in text:
        text = _ELLIPSIS.sub(" ... ", _ABBREVIATION.sub(_with_period, _TITLE.sub(r"\1 ", text)))
    if "!" in text or "?" in text:
        text = _MARKS.sub(_distinct, text)
    found = _TOKEN.findall(text)
    return ["-" if token.startswith("--") else token for token in found] if "--" in text else found


def _with_period(found: re.Match[str]) -> str:
    return f"{found[1]}. "


def _distinct(found: re.Match[str]) -> str:
    """A run of marks with each mark once: `?!?!` is `?!`."""
    return "".join(dict.fromkeys(found[0])).replace(" ", "") + " "


def join_words(tokens: Iterable[str]) -> str:
    """Readable text of these words, with capital letters at the start of sentences and in `I`, `I'm`, `Mr.`.

    Other names stay in lower case. `words` of the text gives the same words again.
    """
    parts: list[str] = []
    starts, glued = True, True  # whether the next word starts a sentence; whether no space precedes it
    titled = False  # a name follows
    for token in tokens:
        is_word = token[:1].isalnum()
        if not glued and token not in _CLOSING:
            parts.append(" ")
        parts.append(_spell(token, capital=starts or titled) if is_word else token)
        starts = (starts and not is_word) or token in _ENDING
        titled = token in _TITLES
        glued = token == "$"
    return "".join(parts)


def _spell(word: str, *, capital: bool) -> str:
    if word in _TITLES:
        return _TITLES[word]
    if word[0] == "i":
        word = "-".join("I" + part[1:] if part in _FIRST_PERSON else part for part in word.split("-"))
    return word[0].upper() + word[1:] if capital and len(word[0].upper()) == 1 else word
