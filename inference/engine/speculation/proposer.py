"""Define the interface of proposers of draft tokens, and the proposer by n-gram lookup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from inference.engine.running_request import Request
from inference.engine.scheduler import SchedulerOutput
from inference.engine.speculation.ngram import NgramIndex

Drafts = dict[Request, list[int]]


class Proposer(Protocol):
    """Source of draft tokens: ``NgramProposer``, ``DraftRunner`` or ``PredictionRunner``."""

    def observe(self, step: SchedulerOutput, hidden: torch.Tensor) -> None:
        """Take what a proposer needs of a forward pass of the model.

        Args:
            step: The step, with its draft tokens, before any of them is accepted.
            hidden: (T, h) rows of its tokens, in memory that the next pass may use again.
        """

    def can_propose(self, request: Request) -> bool:
        """Whether ``propose`` may find draft tokens for a request that decodes."""

    def propose(self, num_tokens: Mapping[Request, int]) -> Drafts:
        """Draft the tokens that follow.

        Args:
            num_tokens: Maximum number of draft tokens of each request, at least 1.

        Returns:
            The draft tokens of each request that has some.
        """

    def accept(self, request: Request, num_accepted: int) -> None:
        """Keep the first ``num_accepted`` draft tokens of the last ``propose``; call once per request with drafts."""

    def forget(self, request: Request) -> None:
        """Drop a request that doesn't run any more."""

    @property
    def state_bytes(self) -> int:
        """Bytes of the proposer's states."""


class NgramProposer:
    """Draft the tokens that followed an earlier occurrence of the text's last tokens.

    Args:
        min_match: Number of tokens that must agree.
    """

    state_bytes = 0

    def __init__(self, min_match: int) -> None:
        self._min_match = min_match
        self._indices: dict[Request, NgramIndex] = {}

    def observe(self, step: SchedulerOutput, hidden: torch.Tensor) -> None:
        """Do nothing: only tokens are compared."""

    def can_propose(self, request: Request) -> bool:
        """See ``Proposer``."""
        index = self._indices.get(request)
        if index is None:
            index = self._indices[request] = NgramIndex(self._min_match)
        return index.agreement(request.token_ids) > 0

    def propose(self, num_tokens: Mapping[Request, int]) -> Drafts:
        """See ``Proposer``."""
        return {
            request: self._indices[request].propose(request.token_ids, count)
            for request, count in num_tokens.items()
            if self.can_propose(request)
        }

    def accept(self, request: Request, num_accepted: int) -> None:
        """Do nothing: the index holds the request's own tokens only."""

    def forget(self, request: Request) -> None:
        """See ``Proposer``."""
        self._indices.pop(request, None)
