"""Count the open requests of this process, and the bytes that it holds of their bodies, in all and per caller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from inference.errors import RateLimitExceeded, RequestTooLarge, Unavailable

ANONYMOUS = "anonymous"
"""The name under which all callers without a key or a session are counted together."""
ANONYMOUS_BYTES = 512 << 10
"""Bytes of all their bodies together."""
MAX_ANONYMOUS_BODY_BYTES = 64 << 10
"""Largest body of one of them: a sign-in form is far smaller."""
RETRY_AFTER_S = 2


class BodyBudget:
    """The bytes of bodies that are received, or whose response hasn't begun.

    Args:
        total_bytes: Limit of all callers together.
        caller_bytes: Limit of one caller with a key or a session.

    Attributes:
        num_open: Requests that are served at the moment, with a body or without.
    """

    def __init__(self, *, total_bytes: int, caller_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._caller_bytes = caller_bytes
        self._held: Counter[str] = Counter()
        self.num_open = 0

    @contextmanager
    def open_request(self) -> Iterator[None]:
        """Count a request as open."""
        self.num_open += 1
        try:
            yield
        finally:
            self.num_open -= 1

    @property
    def held_bytes(self) -> int:
        """Bytes that are held."""
        return self._held.total()

    def check(self, caller: str, num_bytes: int) -> None:
        """Refuse a caller for whom ``num_bytes`` more would be too much.

        Raises:
            RequestTooLarge: They would be too much even alone.
            RateLimitExceeded: The caller's other requests hold too much.
            Unavailable: All requests together hold too much.
        """
        limit = ANONYMOUS_BYTES if caller == ANONYMOUS else self._caller_bytes
        if num_bytes > limit:
            raise RequestTooLarge(
                f"The request body has more than {limit} bytes, the limit of one caller; send a smaller one."
            )
        if self._held[caller] + num_bytes > limit:
            raise RateLimitExceeded(
                f"The bodies of this caller's open requests would have more than {limit} bytes, the limit; wait for "
                "one to begin its response.",
                retry_after_s=RETRY_AFTER_S,
            )
        if self.held_bytes + num_bytes > self._total_bytes:
            raise Unavailable(
                f"The bodies of all open requests would have more than {self._total_bytes} bytes, the limit of this "
                "server; try again.",
                retry_after_s=RETRY_AFTER_S,
            )

    def hold(self, caller: str, num_bytes: int) -> None:
        """Count ``num_bytes`` more of a caller.

        Raises:
            BlazrError: As ``check``.
        """
        self.check(caller, num_bytes)
        self._held[caller] += num_bytes

    def release(self, caller: str, num_bytes: int) -> None:
        """Count ``num_bytes`` less of a caller."""
        self._held[caller] -= num_bytes
        if not self._held[caller]:
            del self._held[caller]
