"""DraftingPolicy: choose the requests for which a step drafts tokens.

A request drafts a fixed number of tokens while its acceptance rate predicts a speedup. If no request drafts, all
requests draft together after a number of plain steps (a probe), so that they share the cost of the verification. The
first step that can draft is one; the number doubles while probes show no speedup. No time is measured, so that a policy
is the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inference.engine.running_request import Request

MIN_SPEEDUP = 1.05
"""Minimum expected speedup of a step that drafts; above 1 as a margin for the error of the estimate."""

VERIFICATION_COST = 0.4
"""Fixed cost of a verification in plain steps, because it can't use the replayed decode or the device graph."""

RECURRENCE_COST = 0.5
"""Further cost of a verification of a model with recurrent states, which are saved before and computed in chunks."""

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
"""Plain steps between probes, at first, for each plain step that a probe costs; at least so many."""
MAX_PROBE_FACTOR = 8
"""How often as many they become while probes show no speedup."""


@dataclass(frozen=True, slots=True)
class DraftingCosts:
    """What drafting costs besides rows, in plain steps of one request.

    Attributes:
        pass_cost: A pass of what drafts, one token for each request: the weights that it reads as a share of those that
            a plain step reads. 0: tokens are looked up.
        has_recurrence: The model has recurrent states.
    """

    pass_cost: float = 0.0
    has_recurrence: bool = False

    def of_step(self, num_drafting: int, num_tokens: int) -> float:
        """Return the cost of a step, its decoding included, in which requests draft ``num_tokens`` each."""
        fixed = VERIFICATION_COST + RECURRENCE_COST * self.has_recurrence
        return 1.0 + fixed + num_tokens * (self.pass_cost + ROW_COST * num_drafting)

    def of_replay(self, rate: float, num_tokens: int) -> float:
        """Return the expected cost of computing accepted tokens again, where a rejection has rolled a state back."""
        return VERIFICATION_COST * (1.0 - rate**num_tokens) if self.has_recurrence else 0.0


def expected_tokens(rate: float, num_tokens: int) -> float:
    """Return the expected tokens of a verification, if each draft token is accepted with probability ``rate``."""
    return num_tokens + 1.0 if rate >= 1.0 else (1.0 - rate ** (num_tokens + 1)) / (1.0 - rate)


def expected_speedup(rates: Sequence[float], num_decoding: int, num_tokens: int, costs: DraftingCosts) -> float:
    """Return the ratio of a drafting step's tokens to the tokens of plain steps in the same time.

    Args:
        rates: Acceptance rates of the requests that draft.
        num_decoding: Number of all decoding requests of the step.
        num_tokens: Draft tokens of each request that drafts.
        costs: What the step costs.
    """
    num_generated = num_decoding - len(rates) + sum(expected_tokens(rate, num_tokens) for rate in rates)
    replays = max((costs.of_replay(rate, num_tokens) for rate in rates), default=0.0)
    return num_generated / num_decoding / (costs.of_step(len(rates), num_tokens) + replays)


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
        costs: What drafting costs.
        is_adaptive: False: every request drafts in every step.
    """

    def __init__(self, num_tokens: int, costs: DraftingCosts, *, is_adaptive: bool) -> None:
        self._num_tokens = num_tokens
        self._costs = costs
        self._is_adaptive = is_adaptive
        self._engine_rate = _Average(INITIAL_RATE)
        self._rates: dict[Request, _Average] = {}
        # So the first step that can draft is a probe.
        self._probe_steps = self._num_plain_steps = 1

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
        return self.is_probing or self._speedup([self.acceptance_rate(request)], 1) >= MIN_SPEEDUP

    def has_speedup(self, requests: Sequence[Request], num_decoding: int) -> bool:
        """Whether drafting for these requests predicts a speedup of a step of ``num_decoding`` requests."""
        if not self._is_adaptive or self.is_probing:
            return True
        rates = [self.acceptance_rate(request) for request in requests]
        return self._speedup(rates, num_decoding) >= MIN_SPEEDUP

    def _least_probe_steps(self, num_decoding: int) -> int:
        """Return the plain steps after a probe of ``num_decoding`` requests, more the more it costs."""
        cost = self._costs.of_step(num_decoding, self._num_tokens) + self._costs.of_replay(0.0, self._num_tokens)
        return math.ceil(PROBE_STEPS * max(1.0, cost - 1.0))

    def _speedup(self, rates: Sequence[float], num_decoding: int) -> float:
        return expected_speedup(rates, num_decoding, self._num_tokens, self._costs)

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
            good = [rate for rate in rates if self._speedup([rate], 1) >= MIN_SPEEDUP]
            is_faster = bool(good) and self._speedup(good, max(num_decoding, len(good))) >= MIN_SPEEDUP
            least = self._least_probe_steps(num_decoding)
            longest = MAX_PROBE_FACTOR * least
            self._probe_steps = least if is_faster else min(longest, max(least, 2 * self._probe_steps))
        self._num_plain_steps = 0

    def forget(self, request: Request) -> None:
        """Drop a request that has ended."""
        self._rates.pop(request, None)
