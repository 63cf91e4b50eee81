"""Record how long the last requests and loads of a model took, and expect the times of the next ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from inference.values.messages import UsageEvent

MAX_RECORDED = 64
"""Requests of a model that are remembered."""
MIN_TOKENS = 4
"""Generated tokens from which a running request's own speed counts."""
MIN_PROGRESS = 0.05
"""Share of a load from which its speed counts."""


class ServiceTimes:
    """The last requests and loads of one model; guarded by the lock of ``ResidentModels``.

    Attributes:
        load_s: Seconds of the last load, from its reserved memory on; 0: there was none.
    """

    def __init__(self) -> None:
        self.load_s = 0.0
        self._requests: deque[tuple[float, float, int]] = deque(maxlen=MAX_RECORDED)  # prefill_s, decode_s, tokens
        self._length_ratios: deque[float] = deque(maxlen=MAX_RECORDED)  # tokens of those that were allowed

    def record(self, usage: UsageEvent, max_tokens: int | None, num_choices: int) -> None:
        """Record a request that has ended."""
        before_start_s = usage["queue_s"] + usage.get("slot_s", 0.0)
        prefill_s = max(0.0, usage["ttft_s"] - before_start_s)
        tokens = max(1, usage["completion_tokens"] // max(1, num_choices))
        self._requests.append((prefill_s, max(0.0, usage["duration_s"] - before_start_s - prefill_s), tokens))
        if max_tokens:
            self._length_ratios.append(min(1.0, tokens / max_tokens))

    def expected_tokens(self, max_tokens: int | None) -> float:
        """Return the expected tokens of a choice; 0: nothing is known."""
        if max_tokens:
            return max_tokens * (sum(self._length_ratios) / len(self._length_ratios) if self._length_ratios else 1.0)
        return sum(tokens for *_, tokens in self._requests) / len(self._requests) if self._requests else 0.0

    @property
    def first_token_s(self) -> float:
        """Mean seconds from the first step to the first token."""
        return sum(prefill_s for prefill_s, *_ in self._requests) / len(self._requests) if self._requests else 0.0

    @property
    def token_s(self) -> float:
        """Mean seconds of a token after the first; 0: nothing is known."""
        number = sum(tokens - 1 for *_, tokens in self._requests)
        return sum(decode_s for _, decode_s, _ in self._requests) / number if number else 0.0

    def remaining_s(self, *, max_tokens: int | None, num_tokens: float, running_s: float) -> float | None:
        """Return the expected seconds until a running request ends; None: nothing is known.

        Args:
            max_tokens: Most tokens of a choice; None: no limit.
            num_tokens: Tokens of a choice so far.
            running_s: Seconds since its first token.
        """
        expected = self.expected_tokens(max_tokens)
        token_s = running_s / (num_tokens - 1) if num_tokens > MIN_TOKENS else self.token_s
        if not expected or not token_s:
            return None
        prefill_s = 0.0 if num_tokens else self.first_token_s
        return prefill_s + max(1.0, expected - num_tokens) * token_s

    def request_s(self, running: Sequence[float]) -> float:
        """Return the mean seconds of a request; 0: nothing is known.

        Args:
            running: Expected seconds in all of the running requests, which count while no request has ended.
        """
        found = [prefill_s + decode_s for prefill_s, decode_s, _ in self._requests] or list(running)
        return sum(found) / len(found) if found else 0.0

    def remaining_load_s(self, *, elapsed_s: float, progress: float) -> float | None:
        """Return the expected seconds of a load that still runs; None: nothing is known.

        Args:
            elapsed_s: Seconds since its memory was reserved.
            progress: Share that is done, 0 to 1.
        """
        if self.load_s > elapsed_s:
            return self.load_s - elapsed_s
        if progress >= MIN_PROGRESS and elapsed_s > 0:
            return elapsed_s * (1 - progress) / progress
        return None
