"""DraftingPolicy: choose the requests for which a step drafts tokens.

A request drafts a fixed number of tokens while its acceptance rate predicts a speedup. If no request drafts, all
requests draft together after a number of plain steps (a probe), so that they share the cost of the verification. The
number doubles while probes show no speedup. No time is measured, so that a policy is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference.engine.running_request import Request

MIN_SPEEDUP = 1.05
"""Minimum expected speedup of a step that drafts; above 1 as a margin for the error of the estimate."""

VERIFICATION_COST = 0.4
"""Fixed cost of a verification in plain steps, because it can't use the replayed decode or the device graph."""

ROW_COST = 0.03
"""Cost of each draft token in plain steps; low, because a decode of few requests is bound by reading the weights."""

MAX_NUM_DECODING = 16
"""Maximum requests of a step that drafts; larger steps are bound by arithmetic, and rows cost more."""

INITIAL_RATE = 0.8
"""Assumed acceptance rate before an engine's first verification."""

REQUEST_WEIGHT = 0.3
ENGINE_WEIGHT = 0.05
"""Weights of the latest verification in the exponentially weighted rates of its request and of the engine."""

PROBE_STEPS = 64
MAX_PROBE_STEPS = 512
"""Plain steps between probes, at first and at most; a probe costs about one plain step."""


def expected_tokens(rate: float, num_tokens: int) -> float:
    """Return the expected tokens of a verification, if each draft token is accepted with probability ``rate``."""
    return num_tokens + 1.0 if rate >= 1.0 else (1.0 - rate ** (num_tokens + 1)) / (1.0 - rate)


def expected_speedup(rates: Sequence[float], num_decoding: int, num_tokens: int) -> float:
    """Return the ratio of a drafting step's tokens to the tokens of plain steps in the same time.

    Args:
        rates: Acceptance rates of the requests that draft.
        num_decoding: Number of all decoding requests of the step.
        num_tokens: Draft tokens of each request that drafts.
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
    """Decide about drafting by the acceptance rates of one engine and its requests.

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
        """Whether all requests draft in the next step, as a probe."""
        return self._num_plain_steps >= self._probe_steps

    def acceptance_rate(self, request: Request) -> float:
        """Return the request's acceptance rate; before its first verification, the engine's."""
        return self._rates.get(request, self._engine_rate).value

    def can_draft(self, request: Request, num_decoding: int) -> bool:
        """Whether drafting for a request predicts a speedup by itself, in a step of ``num_decoding`` requests."""
        if not self._is_adaptive:
            return True
        if num_decoding > MAX_NUM_DECODING:
            return False
        return self.is_probing or expected_speedup([self.acceptance_rate(request)], 1, self._num_tokens) >= MIN_SPEEDUP

    def has_speedup(self, requests: Sequence[Request], num_decoding: int) -> bool:
        """Whether drafting for these requests predicts a speedup of a step of ``num_decoding`` requests."""
        if not self._is_adaptive or self.is_probing:
            return True
        rates = [self.acceptance_rate(request) for request in requests]
        return expected_speedup(rates, num_decoding, self._num_tokens) >= MIN_SPEEDUP

    def record(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """Record a verification; draft tokens after the first rejected one don't count."""
        rate = num_accepted / min(num_drafted, num_accepted + 1)
        self._engine_rate.add(rate, ENGINE_WEIGHT)
        average = self._rates.setdefault(request, _Average(self._engine_rate.value))
        # A probe replaces the rate, because the text has changed since the last verification.
        average.add(rate, 1.0 if self.is_probing else REQUEST_WEIGHT)

    def end_step(self, *, has_verified: bool, num_decoding: int) -> None:
        """Count a step that generated for ``num_decoding`` requests."""
        if not has_verified:
            self._num_plain_steps += num_decoding > 0
            return
        if self.is_probing:
            rates = [average.value for average in self._rates.values()]
            is_faster = expected_speedup([max(rates, default=0.0)], 1, self._num_tokens) >= MIN_SPEEDUP
            self._probe_steps = PROBE_STEPS if is_faster else min(MAX_PROBE_STEPS, 2 * self._probe_steps)
        self._num_plain_steps = 0

    def forget(self, request: Request) -> None:
        """Drop a request that has ended."""
        self._rates.pop(request, None)
