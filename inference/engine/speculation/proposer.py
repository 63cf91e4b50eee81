"""Proposer: who makes guesses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from inference.engine.running_request import Request
from inference.engine.speculation.ngram import NgramIndex

Guesses = dict[Request, list[int]]


class Proposer(Protocol):
    """Contract of the two."""

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

    def take_setup_s(self) -> float:
        """Seconds since the last call that went into making requests' prompts known, once for each; not its guesses."""
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

    def __init__(self, min_match: int) -> None:
        self._min_match = min_match
        self._indices: dict[Request, NgramIndex] = {}

    def propose(self, wanted: Mapping[Request, int]) -> Guesses:
        """See ``Proposer``."""
        found: Guesses = {}
        for request, count in wanted.items():
            index = self._indices.get(request)
            if index is None:
                index = self._indices[request] = NgramIndex(self._min_match)
            guesses = index.propose(request.token_ids, count)
            if guesses:
                found[request] = guesses
        return found

    def settle(self, request: Request, num_accepted: int) -> None:
        """Nothing: the index only has tokens that hold."""

    def forget(self, request: Request) -> None:
        """See ``Proposer``."""
        self._indices.pop(request, None)

    def take_setup_s(self) -> float:
        """Nothing: an index costs next to nothing."""
        return 0.0
