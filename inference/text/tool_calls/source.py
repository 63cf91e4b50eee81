"""Text that arrives in pieces, read by generators.

A reader is a generator that yields whenever it needs more text than there is. What it decides may depend on
characters only, never on where a piece ended; then the way in which a text was cut doesn't show.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

Result = TypeVar("Result")
Reader = Generator[None, None, Result]


class Source:
    """The text that has arrived and isn't read yet.

    Attributes:
        text: What is still needed of it.
        pos: The next character to read.
        is_final: No more comes.
    """

    def __init__(self) -> None:
        self.text = ""
        self.pos = 0
        self.is_final = False
        self._mark: int | None = None

    def feed(self, text: str) -> None:
        """Take the next piece; what was read and isn't marked is forgotten."""
        keep = self.pos if self._mark is None else self._mark
        self.text = self.text[keep:] + text
        self.pos -= keep
        if self._mark is not None:
            self._mark = 0

    def mark(self) -> None:
        """Keep the text from here on, in case that it has to be read in another way."""
        self._mark = self.pos

    def marked(self) -> str:
        """What was read since the mark."""
        return "" if self._mark is None else self.text[self._mark : self.pos]

    def rewind(self) -> None:
        if self._mark is not None:
            self.pos = self._mark

    def release(self) -> None:
        """Forget the mark."""
        self._mark = None

    def peek(self) -> Reader[str]:
        """The next character, empty at the end."""
        while self.pos >= len(self.text):
            if self.is_final:
                return ""
            yield
        return self.text[self.pos]

    def skip_space(self) -> Reader[str]:
        """Go past white space; the character behind it, empty at the end."""
        while True:
            char = yield from self.peek()
            if not char.isspace():
                return char
            self.pos += 1

    def take(self, word: str) -> Reader[bool]:
        """Go past ``word`` if it comes next."""
        while len(self.text) - self.pos < len(word):
            if self.is_final or not word.startswith(self.text[self.pos :]):
                return False
            yield
        if not self.text.startswith(word, self.pos):
            return False
        self.pos += len(word)
        return True


def find_first(text: str, words: Sequence[str], start: int = 0) -> tuple[int, str]:
    """(position, word) of the first of ``words`` in ``text``; (-1, "") if there is none."""
    best, which = -1, ""
    for word in words:
        found = text.find(word, start, len(text) if best < 0 else best + len(word))
        if found >= 0 and (best < 0 or found < best):
            best, which = found, word
    return best, which


def held_length(text: str, words: Sequence[str], start: int = 0) -> int:
    """Characters at the end of ``text`` that may begin one of ``words``."""
    longest = min(max((len(word) for word in words), default=0) - 1, len(text) - start)
    for length in range(longest, 0, -1):
        end = text[len(text) - length :]
        if any(len(word) > length and word.startswith(end) for word in words):
            return length
    return 0
