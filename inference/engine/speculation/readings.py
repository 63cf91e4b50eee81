"""Readings: whether a proposer shall read a request's text, which a draft model has to do before its first guess.

A reading is paid before anything is known of its use, so it isn't a matter of the request's own account: charged there,
it would end the guesses before they can show what they are worth. Two ways lead to one. What requests have gained so
far, per token that they generated, times the tokens that this one may still generate, is more than the reading costs.
Or a fund of the engine can pay for it, which every generated token adds a little to: so that it is found out when texts
become such that guesses pay, at a price that stays a fixed small share. Where they don't pay, at this number of
requests, nearly all texts stay unread.

Tokens are those of ``accounts``.
"""

from __future__ import annotations

from dataclasses import dataclass

FUND = 2.0
EARNING = 0.005
BOUND = 64.0
"""Most tokens in the fund, and most that it can owe."""

FIRST_PRICE = 2.0
"""Tokens per request that have to be in the fund for the first reading, whose price nobody knows."""

MEMORY = 256
"""Generated tokens after which a gain counts a third."""

FIRST_OUTPUT = 64
"""Tokens that a request is expected to generate while none has ended."""
OUTPUT_MEMORY = 0.9


@dataclass(slots=True)
class _Gains:
    """Of the requests whose text was read, older ones less: net gain and generated tokens."""

    gain: float = 0.0
    num_tokens: float = 0.0

    def add(self, gain: float, num_tokens: int) -> None:
        keep = max(0.0, 1 - num_tokens / MEMORY)
        self.gain = keep * self.gain + gain
        self.num_tokens = keep * self.num_tokens + num_tokens


class Readings:
    """What readings cost and bring in one engine."""

    def __init__(self) -> None:
        self._fund = FUND
        self._seconds = 0.0
        self._num_read = 0.0
        self._gains: dict[int, _Gains] = {}
        self._num_output: float | None = None
        self._is_measuring = False

    def may_begin(self, num_tokens: int, num_left: int, num_requests: int, plain_s: float) -> bool:
        """Whether a text shall be read.

        Args:
            num_tokens: Its length.
            num_left: Most tokens that the request will still generate.
            num_requests: That generate now.
            plain_s: Seconds of a step of theirs without guesses.
        """
        if not self._num_read:
            if self._is_measuring or self._fund < FIRST_PRICE * num_requests:
                return False
            self._is_measuring = True
            return True
        price = num_tokens * self._seconds / self._num_read * num_requests / plain_s
        gains = self._gains.get(_bucket(num_requests))
        if gains is not None and gains.num_tokens:
            expected = min(num_left, FIRST_OUTPUT if self._num_output is None else self._num_output)
            if gains.gain / gains.num_tokens * expected > price:
                return True
        if price > self._fund:
            return False
        self._fund -= price
        return True

    def note_cost(self, num_tokens: int, seconds: float, num_requests: int, plain_s: float) -> None:
        """So many tokens were read."""
        if self._is_measuring:
            self._fund = max(-BOUND, self._fund - seconds * num_requests / plain_s)
        keep = 0.5 if self._num_read else 0.0
        self._seconds = keep * self._seconds + seconds
        self._num_read = keep * self._num_read + num_tokens

    def note_gain(self, num_requests: int, gain: float, num_tokens: int) -> None:
        """Requests whose text was read generated so many tokens, and gained so much by guesses."""
        self._gains.setdefault(_bucket(num_requests), _Gains()).add(gain, num_tokens)

    def end_step(self, num_tokens: int) -> None:
        """A step has generated so many, read or not."""
        self._is_measuring = False
        self._fund = min(BOUND, self._fund + EARNING * num_tokens)

    def note_end(self, num_output: int) -> None:
        """A request has ended after so many tokens."""
        known = self._num_output
        self._num_output = num_output if known is None else OUTPUT_MEMORY * (known - num_output) + num_output


def _bucket(num_requests: int) -> int:
    """Numbers of requests that are alike: 1, 2, 3 to 4, 5 to 8, …"""
    return (num_requests - 1).bit_length()
