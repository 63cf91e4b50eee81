"""Proposer: who makes guesses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from inference.engine.running_request import Request
from inference.engine.speculation.ngram import NgramIndex

Guesses = dict[Request, list[int]]


class Proposer(Protocol):
    """Contract of the two.

    Attributes:
        priors: Of each kind of guess, the probability that one holds; what is assumed before any was verified.
    """

    priors: Sequence[float]

    def kind_of(self, request: Request) -> int | None:
        """Kind of the guesses that ``propose`` would make now, an index of ``priors``; None: none."""
        ...

    def propose(self, wanted: Mapping[Request, int]) -> Guesses:
        """Guess what follows each request's tokens.

        Args:
            wanted: Running requests with the number of tokens that are wanted, at least 1.

        Returns:
            At most so many for each; a request of which nothing can be guessed is absent.
        """
        ...

    def settle(self, request: Request, num_accepted: int) -> None:
        """Of the guesses of the last ``propose`` so many hold; for each request that got some, before the next."""
        ...

    def forget(self, request: Request) -> None:
        """The request isn't running any more."""
        ...

    def num_unread(self, request: Request) -> int:
        """Tokens of a text that take time to read before the first guess; 0: none, or it has been begun."""
        ...

    def take_reading(self) -> tuple[int, float]:
        """Tokens that were read since the last call, and the seconds that it took; the guesses aren't in it."""
        ...

    @property
    def state_bytes(self) -> int:
        """Memory of states."""
        ...


class NgramProposer:
    """Guesses that the text goes on as it did before.

    Args:
        min_match: Tokens that have to agree.
    """

    state_bytes = 0
    priors: Sequence[float] = (0.3, 0.5, 0.9)

    def __init__(self, min_match: int) -> None:
        self._min_match = min_match
        self._indices: dict[Request, NgramIndex] = {}

    def kind_of(self, request: Request) -> int | None:
        """By how many tokens agree: fewer than 4, fewer than 8, or more."""
        index = self._indices.get(request)
        if index is None:
            index = self._indices[request] = NgramIndex(self._min_match)
        agreed = index.agreement(request.token_ids)
        return min(agreed // 4, 2) if agreed else None

    def propose(self, wanted: Mapping[Request, int]) -> Guesses:
        """See ``Proposer``."""
        found: Guesses = {}
        for request, count in wanted.items():
            found[request] = self._indices[request].propose(request.token_ids, count)
        return found

    def settle(self, request: Request, num_accepted: int) -> None:
        """Nothing: the index only has tokens that hold."""

    def forget(self, request: Request) -> None:
        """See ``Proposer``."""
        self._indices.pop(request, None)

    def num_unread(self, request: Request) -> int:
        """None: an index costs next to nothing."""
        return 0

    def take_reading(self) -> tuple[int, float]:
        """Nothing."""
        return 0, 0.0
