"""DraftingPolicy: for which requests a step drafts tokens.

A request drafts while its acceptance rate promises a speedup, always the same number of tokens. Where no request does,
all draft again after a number of plain steps, together, so that the verification is paid for once; the number doubles
as long as that brings nothing. Nothing is measured in seconds, so a policy is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference.engine.running_request import Request

MIN_SPEEDUP = 1.05
"""Expected speedup of a step from which on it drafts; the rest is a margin for the estimate."""

VERIFICATION_COST = 0.4
"""What a verification takes beside its rows, in plain steps: it leaves the replayed decode or the device graph."""

ROW_COST = 0.03
"""What each draft token takes, in plain steps. A decode of few requests is bound by reading the weights."""

MAX_NUM_DECODING = 16
"""Requests in a step above which none drafts: their products are bound by arithmetic, so rows cost more than that."""

INITIAL_RATE = 0.8
"""Acceptance rate that an engine assumes before its first verification."""

REQUEST_WEIGHT = 0.3
ENGINE_WEIGHT = 0.05
"""Weights of the latest verification in the exponentially weighted rates of its request and of the engine."""

PROBE_STEPS = 64
MAX_PROBE_STEPS = 512
"""Plain steps before all requests draft again. A probe costs about one plain step, so 64 of them lose 1.5 %."""


def expected_tokens(rate: float, num_tokens: int) -> float:
    """Tokens that a verification of ``num_tokens`` draft tokens yields, if each holds with probability ``rate``."""
    return num_tokens + 1.0 if rate >= 1.0 else (1.0 - rate ** (num_tokens + 1)) / (1.0 - rate)


def expected_speedup(rates: Sequence[float], num_decoding: int, num_tokens: int) -> float:
    """Tokens of a step with draft tokens against those of plain steps in the same time.

    Args:
        rates: Acceptance rates of the requests that draft.
        num_decoding: All requests of the step, those included.
        num_tokens: Draft tokens of each.
    """
    num_generated = num_decoding - len(rates) + sum(expected_tokens(rate, num_tokens) for rate in rates)
    return num_generated / num_decoding / (1.0 + VERIFICATION_COST + ROW_COST * num_tokens * len(rates))


@dataclass(slots=True)
class _Average:
    """An exponentially weighted average."""

    value: float

    def add(self, value: float, weight: float) -> None:
        self.value += weight * (value - self.value)


class DraftingPolicy:
    """The acceptance rates of one engine and its requests.

    Args:
        num_tokens: Draft tokens of a request in a step.
        is_adaptive: False: every request drafts in every step.
    """

    def __init__(self, num_tokens: int, *, is_adaptive: bool) -> None:
        self._num_tokens = num_tokens
        self._is_adaptive = is_adaptive
        self._engine_rate = _Average(INITIAL_RATE)
        self._rates: dict[Request, _Average] = {}
        self._probe_steps = PROBE_STEPS
        self._num_plain_steps = 0

    @property
    def is_probing(self) -> bool:
        """Whether it is time for all requests to draft again."""
        return self._num_plain_steps >= self._probe_steps

    def acceptance_rate(self, request: Request) -> float:
        """The request's, or the engine's before the request's first verification."""
        return self._rates.get(request, self._engine_rate).value

    def can_pay(self, request: Request, num_decoding: int) -> bool:
        """Whether a request's draft tokens could be worth a step that generates for ``num_decoding`` requests."""
        if not self._is_adaptive:
            return True
        if num_decoding > MAX_NUM_DECODING:
            return False
        return self.is_probing or expected_speedup([self.acceptance_rate(request)], 1, self._num_tokens) >= MIN_SPEEDUP

    def pays(self, requests: Sequence[Request], num_decoding: int) -> bool:
        """Whether a step is worth verifying the draft tokens of these requests, of ``num_decoding`` in all."""
        if not self._is_adaptive or self.is_probing:
            return True
        rates = [self.acceptance_rate(request) for request in requests]
        return expected_speedup(rates, num_decoding, self._num_tokens) >= MIN_SPEEDUP

    def record(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """Record a verification. Draft tokens behind the first that doesn't hold say nothing."""
        rate = num_accepted / min(num_drafted, num_accepted + 1)
        self._engine_rate.add(rate, ENGINE_WEIGHT)
        average = self._rates.setdefault(request, _Average(self._engine_rate.value))
        # After a pause only the present text counts.
        average.add(rate, 1.0 if self.is_probing else REQUEST_WEIGHT)

    def end_step(self, *, has_verified: bool, num_decoding: int) -> None:
        """Count a step that generated for ``num_decoding`` requests."""
        if not has_verified:
            self._num_plain_steps += num_decoding > 0
            return
        if self.is_probing:
            rates = [average.value for average in self._rates.values()]
            pays = expected_speedup([max(rates, default=0.0)], 1, self._num_tokens) >= MIN_SPEEDUP
            self._probe_steps = PROBE_STEPS if pays else min(MAX_PROBE_STEPS, 2 * self._probe_steps)
        self._num_plain_steps = 0

    def forget(self, request: Request) -> None:
        """Drop a request that has ended."""
        self._rates.pop(request, None)
