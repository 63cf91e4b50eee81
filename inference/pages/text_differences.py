"""Mark the differences of two texts, word by word."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal

MAX_WORDS = 1_500
"""Words of a text that are compared; the time grows with their square at worst."""
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
        share: Share of the words that are the same, 0 to 1.
    """

    left: tuple[Piece, ...]
    right: tuple[Piece, ...]
    share: float


def compare(left: str, right: str, *, max_words: int = MAX_WORDS) -> Comparison:
    """Compare the first words of two texts."""
    if left == right:
        whole = (Piece("same", left),) if left else ()
        return Comparison(whole, whole, 1.0)
    words = [_WORD.findall(text) for text in (left, right)]
    read = [found[:max_words] for found in words]
    matcher = difflib.SequenceMatcher(None, read[0], read[1], autojunk=False)
    sides: tuple[list[Piece], list[Piece]] = ([], [])
    for tag, begin, end, begin_right, end_right in matcher.get_opcodes():
        kind: Literal["same", "other"] = "same" if tag == "equal" else "other"
        bounds = ((begin, end), (begin_right, end_right))
        for side, found, (low, high) in zip(sides, read, bounds, strict=True):
            if high > low:
                side.append(Piece(kind, "".join(found[low:high])))
    for side, found in zip(sides, words, strict=True):
        if rest := "".join(found[max_words:]):
            side.append(Piece("unread", rest))
    return Comparison(tuple(sides[0]), tuple(sides[1]), matcher.ratio())
