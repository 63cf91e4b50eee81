"""NgramIndex: find how a text went on when its last tokens occurred before (prompt lookup).

Source: Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding. Other than there, the index grows with the
text instead of being searched anew, and among the occurrences the one with the longest agreement counts.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_MATCH = 12
"""Agreement beyond so many tokens says nothing more."""

MAX_CANDIDATES = 12
"""Most recent occurrences that are compared; a word that is everywhere would cost time otherwise."""


class NgramIndex:
    """Where each run of ``width`` tokens ended in one growing sequence.

    The ends of equal runs form a chain, the latest first; one entry of a table and one number per token.

    Args:
        width: Tokens that have to agree, at least 1.
    """

    __slots__ = ("_earlier", "_found", "_latest", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self._latest: dict[tuple[int, ...], int] = {}
        # _earlier[end] is the end of the run before it that is equal, 0 if there is none.
        self._earlier: list[int] = [0] * width
        # Length of the text that was searched last; the end of what agrees, and how many tokens agree.
        self._found = (0, 0, 0)

    def agreement(self, tokens: Sequence[int]) -> int:
        """Tokens at the end that occurred before, ``MAX_MATCH`` or more count alike; 0: fewer than ``width``.

        Args:
            tokens: The sequence; those of earlier calls and perhaps more.
        """
        if self._found[0] != len(tokens):
            self._extend(tokens)
            self._found = (len(tokens), *self._best(tokens))
        return self._found[2]

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """Draft the tokens that follow.

        Args:
            tokens: As ``agreement`` takes them.
            count: Draft tokens.

        Returns:
            ``count`` tokens, or none where nothing agrees. An occurrence that overlaps the end is continued with its
            own period.
        """
        if not self.agreement(tokens):
            return []
        end = self._found[1]
        found = list(tokens[end : end + count])
        period = len(tokens) - end
        while len(found) < count:
            found.append(found[len(found) - period])
        return found

    def _extend(self, tokens: Sequence[int]) -> None:
        """Enter all runs but the one that ends the text: it would find itself."""
        width, latest, earlier = self.width, self._latest, self._earlier
        first = len(earlier)
        tail = tokens[first - width : len(tokens) - 1]
        for end, run in enumerate(zip(*(tail[shift:] for shift in range(width)), strict=False), first):
            earlier.append(latest.get(run, 0))
            latest[run] = end

    def _best(self, tokens: Sequence[int]) -> tuple[int, int]:
        """End of the earlier run with the longest agreement before it, the latest of these, and its agreement."""
        length, width = len(tokens), self.width
        if length <= width:
            return 0, 0
        end = self._latest.get(tuple(tokens[length - width :]), 0)
        best, longest = 0, 0
        for _ in range(MAX_CANDIDATES):
            if end == 0:
                break
            agreed, most = width, min(MAX_MATCH, end)
            while agreed < most and tokens[end - agreed - 1] == tokens[length - agreed - 1]:
                agreed += 1
            if agreed > longest:
                best, longest = end, agreed
                if agreed == MAX_MATCH:
                    break
            end = self._earlier[end]
        return best, longest
