"""Mark the differences of two texts, word by word."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

MAX_WORDS = 1_500
"""Words of a text that are compared.

difflib begins no match at words that make up more than a hundredth of 200 or more: with those of a table, the time
would grow with the cube of this number.
"""
_WORD = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one of the texts.

    Attributes:
        kind: ``same``: it is in both. ``other``: only in this one. ``unread``: it wasn't compared.
    """

    kind: Literal["same", "other", "unread"]
    text: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two texts.

    Attributes:
        left, right: Their parts, in order.
        share: Share of the compared words that are the same, 0 to 1.
        is_same: Whether the whole texts are equal, also in what wasn't compared.
    """

    left: tuple[Piece, ...]
    right: tuple[Piece, ...]
    share: float
    is_same: bool

    @property
    def percent(self) -> int:
        """The share in percent; 100 only if the whole texts are equal."""
        return 100 if self.is_same else min(99, int(100 * self.share))


@lru_cache(maxsize=512)
def compare(left: str, right: str, *, max_words: int = MAX_WORDS) -> Comparison:
    """Compare the first words of two texts; the newest comparisons are kept."""
    if left == right:
        whole = (Piece("same", left),) if left else ()
        return Comparison(whole, whole, 1.0, is_same=True)
    words = [_WORD.findall(text) for text in (left, right)]
    read = [found[:max_words] for found in words]
    sides: tuple[list[Piece], list[Piece]] = ([], [])
    num_same = 0
    for tag, begin, end, begin_right, end_right in _opcodes(*read):
        kind: Literal["same", "other"] = "same" if tag == "equal" else "other"
        num_same += end - begin if tag == "equal" else 0
        bounds = ((begin, end), (begin_right, end_right))
        for side, found, (low, high) in zip(sides, read, bounds, strict=True):
            if high > low:
                side.append(Piece(kind, "".join(found[low:high])))
    for side, found in zip(sides, words, strict=True):
        if rest := "".join(found[max_words:]):
            side.append(Piece("unread", rest))
    share = 2 * num_same / sum(map(len, read))
    return Comparison(tuple(sides[0]), tuple(sides[1]), share, is_same=False)


def _opcodes(left: Sequence[str], right: Sequence[str]) -> list[tuple[str, int, int, int, int]]:
    """Return difflib's opcodes, of which the common beginning and end, found at once, are the first and the last."""
    shorter = min(len(left), len(right))
    begin = next((at for at in range(shorter) if left[at] != right[at]), shorter)
    rest = shorter - begin
    end = next((at for at in range(rest) if left[-1 - at] != right[-1 - at]), rest)
    ends = (len(left) - end, len(right) - end)
    matcher = difflib.SequenceMatcher(None, left[begin : ends[0]], right[begin : ends[1]])
    middle = [
        (tag, begin + low, begin + high, begin + low_right, begin + high_right)
        for tag, low, high, low_right, high_right in matcher.get_opcodes()
    ]
    return [("equal", 0, begin, 0, begin), *middle, ("equal", ends[0], len(left), ends[1], len(right))]
