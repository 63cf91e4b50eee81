"""SharedLimit: limit what the requests of this process hold of one thing at a time, in all and per caller."""

from __future__ import annotations

from types import TracebackType

from inference.errors import RateLimitExceeded, Unavailable

RETRY_AFTER_S = 5


class Share:
    """What one request holds of a ``SharedLimit``, until ``release`` or its collection as garbage; thread-safe.

    Args:
        held: The shares of the limit, without references to them.
        caller: Tenant of the request.
        amount: How much it holds.
    """

    def __init__(self, held: dict[object, tuple[str, int]], caller: str, amount: int) -> None:
        self._held = held
        self._key = object()
        held[self._key] = (caller, amount)

    def release(self) -> None:
        """Hold nothing any more; further calls do nothing."""
        self._held.pop(self._key, None)

    def __enter__(self) -> Share:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


class SharedLimit:
    """A limit of this process.

    Args:
        noun: What is limited, in the plural.
        remedy: What a refused client can do.
        total: Most of it for all callers together.
        per_caller: Most of it for one caller.
    """

    def __init__(self, noun: str, remedy: str, *, total: int, per_caller: int) -> None:
        self.total = total
        self.per_caller = per_caller
        self._noun = noun
        self._remedy = remedy
        self._held: dict[object, tuple[str, int]] = {}

    @property
    def num_held(self) -> int:
        """What all requests hold."""
        return sum(amount for _, amount in list(self._held.values()))

    def hold(self, caller: str, amount: int = 1) -> Share:
        """Return a share; one above ``per_caller`` counts as that much, so that it can be had alone.

        Called in the event loop, so that no other request comes between the check and the share.

        Raises:
            RateLimitExceeded: The caller's requests would hold too much.
            Unavailable: All requests together would hold too much.
        """
        amount = min(amount, self.per_caller)
        own = sum(number for name, number in list(self._held.values()) if name == caller)
        if own + amount > self.per_caller:
            raise RateLimitExceeded(
                f"This caller would have more than {self.per_caller:,} {self._noun}, the limit; {self._remedy}",
                retry_after_s=RETRY_AFTER_S,
            )
        if self.num_held + amount > self.total:
            raise Unavailable(
                f"All callers would have more than {self.total:,} {self._noun}, the limit of this server; "
                f"{self._remedy}",
                retry_after_s=RETRY_AFTER_S,
            )
        return Share(self._held, caller, amount)
