"""Splits edited English prose into sentences with a few rules."""

from __future__ import annotations

import re

# A stop, closing quotes or brackets, white space, and the start of a sentence.
_BREAK = re.compile(r"""(?P<stop>[.!?]+)["'”’)\]]*\s+(?=["'“‘(\[—•-]*\s?(?P<next>[A-Z0-9$][\w'’]*))""")
_LAST_WORD = re.compile(r"[\w.&'’]+$")
# The sentence so far is only the number of a list item.
_NUMERAL = re.compile(r"[\s(\"•—-]*([0-9]{1,3}|[IVXLC]+|[A-Za-z])\)?$")
_BARE = re.compile(r"[\W\d_]*[IVXLC]*[\W\d_]*")  # no words, or only such a number

_TITLE = re.compile("Mr|Mrs|Ms|Dr|Messrs|Hon|Rev|Prof|Gen|Maj|Col|Capt|Lt|Sgt|Adm|Gov|Sen|Rep|St|Mt|Ft|vs|viz|[Cc]f")
_BEFORE_NUMBER = re.compile("[Nn]os?|[Aa]rt|[Ss]ecs?|Stat|ch|pp?|[Vv]ol")
# These may end a sentence; they do if the next word often begins one.
_AMBIGUOUS = re.compile("Jr|Sr|Co|Inc|Bros|Ltd|etc|cent|ct|lbs|Jan|Feb|Aug|Sept|Oct|Nov|Dec")
_OPENER = re.compile(
    "The|This|That|These|Those|There|They|Their|Then|Today|Tonight|To|We|Our|It|Its|In|If|I|He|His|She|Her|And|But"
    "|Or|For|From|As|At|An?|All|By|On|With|When|While|What|Who|Why|How|Now|No|Not|Nor|So|Such|Some|Since|My|You"
    "|Your|Let|Under|Upon|Yet|Also|Because|After|Before|During|Even|Each|Every|Many|Most|More|One|Only|Another"
    "|Any|Congress|Americans?|Here|However|Indeed|Instead|Through|Thus|Unless|Until|Where|Whether|Which|Without"
)


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, in order, with single spaces; a line break always ends one."""
    sentences: list[str] = []
    for paragraph in text.splitlines():
        line, start = " ".join(paragraph.split()), 0
        for match in _BREAK.finditer(line):
            if _ends(line[start : match.start()], match["stop"], following=match["next"]):
                sentences.append(line[start : match.end()].strip())
                start = match.end()
        sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if not _BARE.fullmatch(sentence)]


def sentence_end(text: str, after: int = 0) -> int | None:
    """The end of the sentence that contains position `after`; None if it cannot be determined yet.

    Whether a stop ends a sentence depends on the next word, so that word must be present.
    """
    written = len(text) - len(text[after:].lstrip())  # line breaks before any word do not count
    end = text.find("\n", written)
    start = text.rfind("\n", 0, written) + 1
    line = text[start:] if end < 0 else text[start:end]
    for match in _BREAK.finditer(line):
        if _ends(line[: match.start()], match["stop"], following=match["next"]):
            stop = start + match.start() + len(match[0].rstrip())
            if stop > after:
                return stop
    return None if end < 0 else end


def _ends(before: str, stop: str, *, following: str) -> bool:
    """Whether a stop after `before` ends a sentence, if `following` is the next word."""
    if stop != ".":
        return True
    if _NUMERAL.fullmatch(before):
        return False
    match = _LAST_WORD.search(before)
    word = match[0] if match else ""
    if _TITLE.fullmatch(word):
        return False
    if _BEFORE_NUMBER.fullmatch(word):
        return not following[0].isdigit()
    if _AMBIGUOUS.fullmatch(word) or "." in word.strip("."):  # U.S., a.m., H.R.
        return bool(_OPENER.fullmatch(following))
    # a single capital is an initial, except the pronoun
    return not (len(word) == 1 and word.isupper() and word != "I")
