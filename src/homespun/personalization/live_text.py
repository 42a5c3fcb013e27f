"""Suggestions while a text is being typed: for its next word, or for the rest of the word that is begun."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from homespun.core.words import is_in_word, spell_alike, words
from homespun.models.next_word import LONGEST_SPELLING
from homespun.models.suggester import Suggester, Suggestion

INSIDE = "'’-"  # signs inside words


class LiveText:
    """Keeps what the model has read, so that a keystroke costs little. A new word is suggested from the line after it
    has been typed `learn_after` times on; 0: never."""

    def __init__(self, suggester: Suggester, *, k: int = 3, learn_after: int = 0) -> None:
        self.suggester, self.k, self.learn_after = suggester, k, learn_after
        self.lines: list[str] = []
        self._words: list[str] = []
        self._typed = [suggester.start]  # after each word

    def enter(self, line: str) -> None:
        """Begin a new line after this one."""
        self.lines.append(line)
        found = new_words(self.lines, self.suggester) if self.learn_after and self.suggester.learns else Counter[str]()
        learned = [word for word, count in found.items() if count >= self.learn_after]
        if learned:
            self.suggester = self.suggester.with_words(learned, counts=[found[word] for word in learned])
        self._words, self._typed = [], [self.suggester.start]

    def suggestions(self, text: str) -> list[Suggestion]:
        """The likeliest words at the end of a text."""
        before, begun = split_text(text)
        found = words(before)
        same = next((n for n, pair in enumerate(zip(self._words, found, strict=False)) if pair[0] != pair[1]), None)
        same = min(len(self._words), len(found)) if same is None else same
        del self._words[same:], self._typed[same + 1 :]
        for word in found[same:]:
            self._words.append(word)
            self._typed.append(self.suggester.read(self._typed[-1], word))
        return self.suggester.suggest(self._typed[-1], spell_alike(begun), k=self.k)

    def complete(self, text: str, place: int = 0) -> str:
        """The text after taking a suggestion; unchanged if there is none at this place."""
        found = self.suggestions(text)
        if place >= len(found):
            return text
        before, begun = split_text(text)
        word = found[place].word
        capital = begun[:1].isupper() or (not begun and not before.strip())
        return f"{before}{word[0].upper() + word[1:] if capital else word} "


def split_text(text: str) -> tuple[str, str]:
    """What is before the word at the end of a text, and that word; empty if it ends with a space or a sign."""
    start = len(text)
    while start and (is_in_word(text[start - 1]) or text[start - 1] in INSIDE):
        start -= 1
    while start < len(text) and not text[start].isalnum():  # a word begins with a letter
        start += 1
    return text[:start], text[start:]


def new_words(lines: Iterable[str], suggester: Suggester) -> Counter[str]:
    """How often each word was typed that the model cannot suggest and could learn; no signs."""
    known = set(suggester.words)
    typed = (word for line in lines for word in words(line) if word[0].isalnum())
    return Counter(word for word in typed if word not in known and len(word.encode()) <= LONGEST_SPELLING)
