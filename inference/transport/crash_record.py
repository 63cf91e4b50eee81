"""Decide, from the crashes of workers that ran a request, whether the request runs alone, or fails.

The rule, for requests of clients (in Redis) and jobs (in rows) alike:

- A crash counts against every request that the worker held. While a request runs alone, a crash counts against that
  request only.
- After ``ALONE_AFTER`` crashes a request runs alone: with no other request in the worker's engines. From then on only a
  crash while it runs alone counts. So no request fails for the crash of another.
- After ``MAX_CRASHES`` crashes the request fails.
- Earlier crashes no longer count once an attempt has got ``MARGIN_TOKENS`` further than every attempt before that ended
  in a crash. A request that kills at a certain token, or after a number of tokens, never gets further.
- ``MAX_DELIVERIES`` limits the deliveries in all, for a request that gets further each time and kills nevertheless.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

ALONE_AFTER = 2
MAX_CRASHES = 3
MAX_DELIVERIES = 20
MARGIN_TOKENS = 32
"""More tokens than a worker has computed and not yet sent at its end."""


@dataclass(frozen=True, slots=True)
class CrashRecord:
    """The crashes of one request.

    Attributes:
        crashes: Crashes that count.
        seen: ``crashes`` at the last delivery.
        reach: Most tokens that an attempt made before it ended in a crash.
        delivered: Tokens that the client had at the last delivery.
    """

    crashes: int = 0
    seen: int = 0
    reach: int = 0
    delivered: int = 0

    def resumed(self, delivered: int) -> CrashRecord:
        """Return the record after another delivery, when the client has ``delivered`` tokens."""
        made = max(0, delivered - self.delivered)
        new = max(0, self.crashes - self.seen)
        crashes = new if made > self.reach + MARGIN_TOKENS else self.crashes
        return CrashRecord(crashes, crashes, max(self.reach, made) if new else self.reach, delivered)

    @property
    def has_failed(self) -> bool:
        """Whether the request must not run again."""
        return self.crashes >= MAX_CRASHES

    @property
    def alone_tokens(self) -> int | None:
        """New tokens for which the request must run alone; None: it need not."""
        return tokens_alone(self.reach) if self.crashes >= ALONE_AFTER else None


def tokens_alone(reach: int) -> int:
    """Return the new tokens for which a request runs alone, if earlier attempts made up to ``reach`` tokens."""
    return reach + MARGIN_TOKENS + 1
