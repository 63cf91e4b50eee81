"""NgramIndex: find the tokens that followed an earlier occurrence of a text's last tokens (prompt lookup).

Source: Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding. Differences: an index grows with the text
instead of a new search in each step, and the occurrence with the longest agreement is used.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_MATCH = 12
"""Maximum number of agreeing tokens that are compared."""

MAX_CANDIDATES = 12
"""Number of most recent occurrences that are compared, to bound the time for frequent words."""


class NgramIndex:
    """Index of the ends of all runs of ``width`` tokens in one growing sequence.

    The ends of equal runs form a chain, the latest first. The index takes a table entry and a number per token.

    Args:
        width: Number of tokens that must agree, at least 1.
    """

    __slots__ = ("_earlier", "_found", "_latest", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self._latest: dict[tuple[int, ...], int] = {}
        # _earlier[end] is the end of the previous equal run, 0 if there is none.
        self._earlier: list[int] = [0] * width
        # The last search: length of the text, end of the best run, number of agreeing tokens.
        self._found = (0, 0, 0)

    def agreement(self, tokens: Sequence[int]) -> int:
        """Return how many last tokens occurred before, up to ``MAX_MATCH``; 0: fewer than ``width``.

        Args:
            tokens: The sequence; it begins with the tokens of earlier calls.
        """
        if self._found[0] != len(tokens):
            self._extend(tokens)
            self._found = (len(tokens), *self._best(tokens))
        return self._found[2]

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """Draft the tokens that follow.

        Args:
            tokens: The sequence, as for ``agreement``.
            count: Number of draft tokens.

        Returns:
            ``count`` tokens, or none without an agreement. An occurrence that overlaps the end is continued
            periodically.
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
        """Add all runs except the last one, which a search would find as its own match."""
        width, latest, earlier = self.width, self._latest, self._earlier
        first = len(earlier)
        tail = tokens[first - width : len(tokens) - 1]
        for end, run in enumerate(zip(*(tail[shift:] for shift in range(width)), strict=False), first):
            earlier.append(latest.get(run, 0))
            latest[run] = end

    def _best(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Return the end of the run with the longest agreement (the latest of several), and the agreement."""
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
