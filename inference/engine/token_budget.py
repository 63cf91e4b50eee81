"""TokenBudget: limit the tokens of a step, and lower the limit for as long as memory is short."""

from __future__ import annotations

MAX_WAIT = 4096
"""Maximum good steps before the budget is doubled."""


class TokenBudget:
    """Maximum tokens of the next step.

    A step that runs out of memory halves the budget. It is doubled again after a number of good steps, which each
    failure doubles: a failure makes requests start again, so failures must become rare enough for requests to end
    between two.

    Attributes:
        tokens: The present budget, at most ``max_tokens``.
    """

    def __init__(self, max_tokens: int) -> None:
        self.tokens = self._max_tokens = max_tokens
        self._wait = 1
        self._num_good = 0

    def lower(self) -> None:
        """Record a step that ran out of memory."""
        self.tokens = max(1, self.tokens // 2)
        self._wait = min(2 * self._wait, MAX_WAIT)
        self._num_good = 0

    def record_step(self) -> None:
        """Record a step that had enough memory."""
        self._num_good += 1
        if self._num_good >= self._wait:
            self._num_good = 0
            if self.tokens == self._max_tokens:
                self._wait = 1
            self.tokens = min(2 * self.tokens, self._max_tokens)
