"""Proposer: who makes guesses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from inference.engine.running_request import Request
from inference.engine.speculation.ngram import NgramIndex

Guesses = dict[Request, list[int]]


@dataclass(frozen=True, slots=True)
class Hindsight:
    """What guesses that weren't made would have been worth.

    Attributes:
        request: Whose.
        kind: Of the guesses.
        num_guessed: Tokens that came since.
        num_accepted: Those of them that the guesses had right, up to the first wrong one.
    """

    request: Request
    kind: int
    num_guessed: int
    num_accepted: int


class Proposer(Protocol):
    """Contract of the two.

    Attributes:
        priors: Of each kind of guess, the probability that one holds; what is assumed before any was verified.
        has_hindsight: ``take_hindsight`` tells of the guesses that weren't made.
    """

    priors: Sequence[float]
    has_hindsight: bool

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

    def take_hindsight(self) -> Sequence[Hindsight]:
        """Of guesses that ``kind_of`` had in view and nobody asked for; what the calls of it since the last found."""
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
    has_hindsight = True

    def __init__(self, min_match: int) -> None:
        self._min_match = min_match
        self._indices: dict[Request, NgramIndex] = {}
        self._hindsight: list[Hindsight] = []

    def kind_of(self, request: Request) -> int | None:
        """By how many tokens agree: fewer than 4, fewer than 8, or more."""
        index = self._indices.get(request)
        if index is None:
            index = self._indices[request] = NgramIndex(self._min_match)
        agreed, num_new, held = index.hindsight(request.token_ids)
        if agreed:
            self._hindsight.append(Hindsight(request, _kind(agreed), num_new, held))
        agreed = index.agreement(request.token_ids)
        return _kind(agreed) if agreed else None

    def propose(self, wanted: Mapping[Request, int]) -> Guesses:
        """See ``Proposer``."""
        found: Guesses = {}
        for request, count in wanted.items():
            index = self._indices[request]
            found[request] = index.propose(request.token_ids, count)
            # These are verified, so they count there.
            index.forget_search()
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

    def take_hindsight(self) -> Sequence[Hindsight]:
        """See ``Proposer``."""
        taken, self._hindsight = self._hindsight, []
        return taken


def _kind(agreed: int) -> int:
    return min(agreed // 4, 2)
