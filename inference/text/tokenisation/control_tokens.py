"""Find control tokens in a text, in time that doesn't grow with the number of tokens.

A regular expression of alternatives would try each of them at each place. Published models have thousands of control
tokens, so a long message of ``<`` would take seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_KEY_CHARS = 3
"""Tokens are grouped by so many first characters."""


class ControlTokens:
    """A set of control tokens. Immutable, so safe to share between threads.

    Args:
        tokens: Their texts; empty ones are left out.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = frozenset(filter(None, tokens))
        self._longest_first = tuple(sorted({len(token) for token in self._tokens}, reverse=True))
        lengths: dict[str, set[int]] = {}
        for token in self._tokens:
            lengths.setdefault(token[:_KEY_CHARS], set()).add(len(token))
        self._lengths = {key: tuple(sorted(found, reverse=True)) for key, found in lengths.items()}
        firsts = sorted({token[0] for token in self._tokens})
        self._first = re.compile("[" + "".join(map(re.escape, firsts)) + "]") if firsts else None

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def match(self, text: str, begin: int) -> int:
        """Return the length of the longest token at ``begin``; 0: there is none."""
        for num_chars in range(_KEY_CHARS, 0, -1):  # a token shorter than a key is a key of its own
            for length in self._lengths.get(text[begin : begin + num_chars], ()):
                if text[begin : begin + length] in self._tokens:
                    return length
        return 0

    def match_before(self, text: str, begin: int, end: int) -> int:
        """Return the length of the longest token that ends at ``end`` and begins at ``begin`` or later; 0: none."""
        for length in self._longest_first:
            if end - length >= begin and text[end - length : end] in self._tokens:
                return length
        return 0

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield begin and end of each token in the text, from left to right, the longest at each place."""
        position = 0
        while self._first is not None and (found := self._first.search(text, position)):
            length = self.match(text, found.start())
            if length:
                yield found.start(), found.start() + length
            position = found.start() + max(length, 1)

    def split(self, text: str) -> list[str]:
        """Cut the text at its tokens: text and tokens in turns, beginning and ending with text, which may be empty."""
        parts: list[str] = []
        position = 0
        for begin, end in self.spans(text):
            parts += (text[position:begin], text[begin:end])
            position = end
        return [*parts, text[position:]]
